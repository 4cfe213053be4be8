// Table maps any int64 key to a row of weights and optimizer state.
//
// src/monolith/table/base.py defines the verbs. Thread-safe: any two methods may run concurrently.
// Readers take no lock. Arguments are borrowed for the call; outputs are written in full. A method
// that throws has changed nothing, except fill_rows(), and changes() of a cursor, which leaves the
// cursor behind.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/batch.h"
#include "table/admission.h"
#include "table/arena.h"
#include "table/bag_gradients.h"
#include "table/cut.h"
#include "table/gate.h"
#include "table/index.h"
#include "table/layout.h"
#include "table/memory.h"
#include "table/recorder.h"
#include "table/slots.h"
#include "table/touched_log.h"

namespace monolith {

struct PendingKey;
enum class Fetch;

enum class NonFinite { kRefuse, kSkip, kClip };
enum class BudgetPolicy { kRefuse, kEvictOldest, kEvictLeastFrequent };

struct TableSpec {
  std::string name;  // for error messages
  std::vector<SegmentSpec> segments;
  uint64_t seed = 0;
  bool is_serving = false;  // weights are encoded without rounding; a new row starts from zeros
  NonFinite non_finite = NonFinite::kRefuse;
  float clip_value = 0;
  AdmissionSpec admission;
  uint32_t expiry_days = 0;
  SlotValues expiry_slots;
  size_t budget_bytes = SIZE_MAX;  // above the size of an empty table
  BudgetPolicy budget_policy = BudgetPolicy::kRefuse;
  size_t log_bytes = size_t{64} << 20;  // bound of the touched log
  bool records = false;                 // records the order of changes
  uint32_t first_version = 0;           // version of index lines; tests force the wrap-around
  uint32_t first_generation = 1;        // likewise
};

struct AppliedCounts {
  uint64_t applied = 0, inserted = 0, refused = 0, skipped = 0;
};

// Counters since construction.
struct TableCounters {
  std::atomic<uint64_t> inserted{0}, erased{0}, skipped{0}, refused{0};
  std::atomic<uint64_t> evicted{0}, evicted_for_budget{0};
  std::atomic<uint64_t> sweep_held_max{0};          // most rows that a sweep visited under one lock
  mutable std::atomic<uint64_t> reader_retries{0};  // a writer changed the row while it was copied
  mutable std::atomic<uint64_t> reader_waits{0};    // a reader met a row being written
  mutable std::atomic<uint64_t> reader_wait_max_ns{0};
};

class Table {
 public:
  explicit Table(const TableSpec& spec);

  const Layout& layout() const noexcept { return layout_; }
  // Number of rows. While calls run, the count may differ by at most their keys.
  uint64_t num_rows() const noexcept {
    for (uint64_t removed = num_removed();;) {
      const uint64_t inserted = counters_.inserted;
      const uint64_t again = num_removed();
      if (again == removed) return inserted > removed ? inserted - removed : 0;
      removed = again;
    }
  }
  // Number of rows removed since construction. A call that removes rows has counted them when it
  // returns.
  uint64_t num_removed() const noexcept {
    return counters_.erased + counters_.evicted + counters_.evicted_for_budget;
  }
  size_t row_bytes() const noexcept { return arena_.bytes(); }
  size_t index_bytes() const noexcept { return index_.bytes(); }
  uint64_t salt() const noexcept { return index_.salt(); }  // of place_of()
  // Number of leading bits of a hash that distinguish most bins.
  uint32_t index_depth() const {
    Epochs::Guard guard(epochs_);  // another thread may replace the directory meanwhile
    return index_.depth();
  }
  size_t candidate_bytes() const noexcept { return admission_ ? admission_->bytes() : 0; }
  size_t held_bytes() const noexcept { return memory_.held_bytes(); }
  // Number of calls of assign, assign_add and apply_gradients; each call seeds its rounding with
  // its number.
  uint64_t num_update_calls() const noexcept { return num_update_calls_.load(); }
  void set_num_update_calls(uint64_t number) noexcept { num_update_calls_.store(number); }
  // Largest update time of a successful call or of an imported row; 0 after clear().
  uint32_t latest_time() const noexcept { return latest_time_.load(); }
  void set_latest_time(uint32_t time) noexcept { latest_time_.store(time); }
  const TableCounters& counters() const noexcept { return counters_; }
  const IndexCounters& index_counters() const noexcept { return index_.counters(); }
  // Makes allocations beyond the limit fail as if the machine had no more memory.
  void set_memory_limit(size_t bytes) noexcept { memory_.set_limit(bytes); }

  // Reads the weights of the keys into `out`, (n, dim). A missing key reads as its initial values
  // if `initial`, else as zeros. `scales` has the scale of the view of each segment.
  void lookup(const int64_t* keys, size_t n, float* out, bool initial, const float* scales,
              unsigned threads) const;
  // The same on the calling thread. Writes the location of each key to `seen`, for a later step.
  void lookup_seen(std::span<const int64_t> keys, float* out, bool initial,
                   KeyLocation* seen) const;
  // Options of reading weights: whether missing keys read as initial values or as zeros, and the
  // scales of views. With `streams`, rows of plain floats are copied past the caches; the rows must
  // be whole cache lines and the targets aligned to cache lines, and the caller ends with
  // fence_streamed().
  struct ReadOptions {
    bool initial;
    const float* scales;
    bool streams = false;
  };
  // Pools the rows of each bag into `out`, (num_bags, dim). `winners`, (num_bags, dim), is written
  // for kMax only. This verb and the following bag verbs throw std::invalid_argument if the splits
  // are not valid.
  void lookup_bags(const Bags& bags, const ReadOptions& options, float* out, int32_t* winners,
                   unsigned threads) const;
  // Pools the bags [first, last) on the calling thread. The splits must be valid, and the mode not
  // kMax.
  void lookup_some_bags(const Bags& bags, size_t first, size_t last, const ReadOptions& options,
                        const BagRows<float>& out) const;
  // Turns `grads` of the pooled rows, (num_bags, dim), into gradients of the bag weights, `out`,
  // (num_keys,).
  void bag_weight_gradients(const Bags& bags, const ReadOptions& options, const float* grads,
                            float* out, unsigned threads) const;
  void contains(const int64_t* keys, size_t n, bool* out, unsigned threads) const;
  // Buffers of whole rows: one buffer per column of an export, in the order of the row.
  struct Columns {
    int64_t* times;               // (n,)
    std::vector<char*> data;      // (n, sizes[i]) each
    std::vector<uint32_t> sizes;  // bytes of one row in each column
  };
  // Reads whole rows; an absent key gets zeros. As of an open `cut`, or the current rows if `cut`
  // is null. For a cut, keys that ascend by hash are fastest.
  void entries(const int64_t* keys, size_t n, bool* present, const Columns& columns,
               unsigned threads, Cut* cut = nullptr) const;
  // Writes up to `limit` rows with first <= hash <= last, ascending by hash, and returns their
  // count: as of an open `cut`, or the current rows if `cut` is null.
  size_t export_rows(uint64_t first, uint64_t last, size_t limit, int64_t* keys,
                     const Columns& columns, Cut* cut = nullptr);

  void lookup_or_insert(const int64_t* keys, size_t n, float* out, const float* scales,
                        uint32_t now, unsigned threads);
  // Sets the weights of the keys; of equal keys the last occurrence counts. `absent`, (n,) or null,
  // is not zero for a key that is removed instead.
  void assign(const int64_t* keys, size_t n, const float* values, uint32_t now, unsigned threads,
              const uint8_t* absent = nullptr);
  void assign_add(const int64_t* keys, size_t n, const float* values, uint32_t now,
                  unsigned threads);
  // Further arguments of apply_gradients(). `rates` and `scales` have one number per segment.
  struct StepOptions {
    const float* rates;
    const float* scales;
    int64_t step;
  };
  // Throws std::invalid_argument if apply_gradients() would refuse the gradients under
  // NonFinite::kRefuse.
  void check_finite(const float* grads, size_t n, unsigned threads) const;
  // counts: of each gradient, how many occurrences of its key it is the sum of; null: one each.
  AppliedCounts apply_gradients(const int64_t* keys, size_t n, const float* grads,
                                const StepOptions& options, uint32_t now, unsigned threads,
                                const int32_t* counts = nullptr);
  // Adds the gradients of equal keys. `distinct` has the distinct keys of a single piece with one
  // key per bag; may be null.
  GradientSum sum_bag_gradients(std::span<const BagPiece> pieces, unsigned threads,
                                std::pmr::monotonic_buffer_resource* memory = nullptr,
                                const DistinctKeys* distinct = nullptr) const;
  // Makes the same step, bit for bit, as apply_gradients() with the gradients of all keys in the
  // bags.
  AppliedCounts apply_bag_gradients(GradientSum& sum, const StepOptions& options, uint32_t now,
                                    unsigned threads);
  void reinitialize(const int64_t* keys, size_t n, int32_t* existed, uint32_t now,
                    unsigned threads);
  void erase(const int64_t* keys, size_t n, bool* existed, unsigned threads);
  // Adds whole rows. `absent` is as for assign().
  void import_rows(const int64_t* keys, size_t n, const Columns& columns, unsigned threads,
                   const uint8_t* absent = nullptr);
  // Does import_rows() on the calling thread, for a table that is being loaded: fast for keys in
  // the order of an export. If fill_rows() throws, some rows are already in the table.
  void fill_rows(const int64_t* keys, size_t n, const Columns& columns);
  // Prepares the index of an empty table for `n` rows with keys of any hash. Throws OutOfMemory and
  // changes nothing.
  void expect_rows(size_t n);
  // Removes every row, candidate and filter count. Returns false, and changes nothing, if a cut is
  // open.
  bool clear();

  // Removes expired rows and returns their count.
  uint64_t evict(uint32_t reference);
  // Does the same in calls of a few milliseconds: each call visits some bins, starting with the bin
  // that covers `first`.
  struct EvictResult {
    uint64_t count;
    uint64_t next;  // `first` of the next call; 0 after the last bin
  };
  EvictResult evict_slice(uint64_t first, uint32_t reference);

  // Exports and imports the candidates and filters of admission: rows of num_candidate_columns()
  // numbers.
  uint32_t num_candidate_columns() const noexcept {
    return admission_ ? admission_->num_columns() : 0;
  }
  std::vector<int64_t> export_candidates(std::span<const uint32_t> partitions, Cut* cut = nullptr);
  void import_candidates(const int64_t* values, size_t n);
  Admission::Facts admission_facts();

  // Opens a cut: waits for running writers; later writers store in the cut the rows that they
  // change. Returns null if too many cuts are open. Throws std::overflow_error if no generation is
  // left while cuts are open. With a `cursor`, the cut is also a read of that cursor, in the same
  // moment: changes(cut) returns the keys.
  std::shared_ptr<Cut> open_cut(const std::string* cursor = nullptr);
  // The cursor of the cut is left behind unless `is_read`.
  void close_cut(Cut& cut, bool is_read = true);
  size_t num_cuts();
  size_t cut_bytes();

  // Keys that changed or were removed since the last read of the cursor, each once, ascending by
  // hash. `is_full` means that the cursor must re-read the whole table: the cursor is new, the log
  // or clear() dropped keys that it had not read, or an open cut has outlived all generations.
  struct Changes {
    bool is_full;
    std::vector<int64_t> present, gone;
  };
  Changes changes(const std::string& cursor, unsigned threads);
  // Keys that changed between the previous read of the cut's cursor and the cut: those with a row
  // at the cut, and those without. No partition may have been released.
  Changes changes(Cut& cut, unsigned threads);
  bool drop_cursor(const std::string& cursor);
  std::vector<std::string> cursors() { return log_.cursors(); }
  size_t log_bytes() noexcept { return log_.bytes(); }
  size_t spare_log_bytes() noexcept { return log_.spare_bytes(); }

  // Returns null unless the table records changes.
  Recorder* recorder() noexcept { return recorder_.get(); }

 private:
  class Writer;
  struct RowCache;

  template <Fetch kFetch, typename Hit, typename Done, typename Miss>
  void read(const int64_t* keys, size_t first, size_t last, const Hit& hit, const Done& done,
            const Miss& miss) const;
  template <typename Target, typename Use>
  void read_weights(const int64_t* keys, size_t first, size_t last, const ReadOptions& options,
                    const Target& target, const Use& use) const;
  void check_bags(const char* verb, const Bags& bags) const;
  template <typename Piece>
  void in_bags(const Bags& bags, unsigned threads, const Piece& piece) const;
  struct BagRange {
    size_t first, last;
    Epochs::Guard& guard;
  };
  template <typename Read>
  void read_range(const Bags& bags, const BagRange& range, const Read& read) const;
  void sum_bags(const Bags& bags, const BagRange& range, const ReadOptions& options,
                const BagRows<float>& out) const;
  void pool_range(const Bags& bags, const BagRange& range, const ReadOptions& options,
                  const BagRows<float>& out, int32_t* winners) const;
  template <typename Target, typename Use>
  void read_bags(const Bags& bags, const BagRange& range, const ReadOptions& options,
                 const Target& target, const Use& use) const;
  template <typename Hit>
  bool read_one(int64_t key, PendingKey& p, const Hit& hit) const;
  template <typename Piece>
  void in_pieces(size_t n, unsigned threads, const Piece& piece) const;
  void wait_for_writer(const Line& line, uint32_t version) const noexcept;
  struct CutKeys;
  template <Fetch kFetch, typename Put, typename Miss>
  void read_entries(const CutKeys& keys, unsigned threads, const Put& put, const Miss& miss) const;
  void contains_at(Cut& cut, const int64_t* keys, size_t n, bool* out, unsigned threads) const;
  class Exporter;
  std::vector<int64_t> in_hash_order(const std::vector<int64_t>& keys, unsigned threads);
  template <typename Contains>
  Changes split_keys(const std::vector<int64_t>& keys, unsigned threads, const Contains& contains);

  enum class Insertion { kInserted, kFound, kRefused };
  Insertion insert_row(Batch::Entry& entry, RowCache& rows);
  template <typename Write>
  Insertion insert_row(Batch::Entry& entry, RowCache& rows, const Write& write);
  bool insert_again(const Batch::Entry& entry, RowCache& rows) noexcept;
  bool evicts_for_budget() const noexcept { return budget_policy_ != BudgetPolicy::kRefuse; }
  bool evict_for_budget(Bin& bin, TouchedLog::Notes& notes, uint32_t& number) noexcept;
  EvictResult evict_bins(uint64_t first, uint32_t reference);
  bool is_expired(int64_t key, uint32_t number, uint32_t reference) const noexcept;
  uint32_t evict_bin(uint64_t hash, uint32_t reference, TouchedLog::Notes& notes,
                     uint64_t& last) noexcept;
  uint32_t evict_lines(Bin& bin, uint32_t first, uint32_t end, uint32_t reference,
                       TouchedLog::Notes& notes) noexcept;
  bool begin_generation() noexcept;
  void keep_row(int64_t key, uint32_t number, TouchedLog::Notes* notes);
  bool keep_victim(int64_t key, uint32_t number, TouchedLog::Notes& notes) noexcept;
  void initial_or_zeros(float* weights, int64_t key, const ReadOptions& options) const noexcept {
    if (!options.initial || reads_zeros(key)) {
      return static_cast<void>(std::fill_n(weights, layout_.dim(), 0.0f));
    }
    layout_.initial_weights(weights, key);
    if (layout_.has_views()) layout_.see(weights, options.scales);
  }
  // Whether a reader may use the weights of a row in place, and check the version afterwards.
  bool is_read_in_place() const noexcept {
    return !MONOLITH_TSAN && layout_.is_plain() && !layout_.has_views();
  }
  bool reads_zeros(int64_t key) const noexcept { return admission_ && admission_->has_rule(key); }
  bool remove_row(const Batch::Entry& entry, bool is_reserved, RowCache& rows) noexcept;
  template <typename Edit>
  void update_row(const Batch::Entry& entry, RowCache& rows, const Edit& edit) noexcept;
  template <typename Edit>
  void edit_weights(char* row, bool is_new, int64_t key, uint64_t call, RowCache& rows,
                    const Edit& edit) const noexcept;
  template <typename Update>
  void numbered(const Update& update);
  void saw(uint32_t time) noexcept;
  template <typename MakeWriter, typename Source>
  AppliedCounts step_rows(const MakeWriter& make_writer, const Source& grads,
                          const StepOptions& options, uint32_t now);
  void prefetch_home(int64_t key) const noexcept { fetch_line(index_.home(key_hash(key))); }
  std::string refusal(size_t row, size_t column, float value) const;

  const std::string name_;
  const Layout layout_;
  const bool is_serving_;
  const NonFinite non_finite_;
  const float clip_value_;
  const SlotRule expiry_days_;
  const BudgetPolicy budget_policy_;
  Memory memory_;
  mutable Epochs epochs_;  // destroyed after arena_ and index_
  Arena arena_;
  Index index_;
  TouchedLog log_;
  Cuts cuts_;  // destroyed before log_
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Admission> admission_;  // null if every key gets a row
  Gate gate_;
  std::atomic<uint64_t> num_samplings_{0};
  std::atomic<uint64_t> num_update_calls_{0};
  std::atomic<uint32_t> latest_time_{0};
  TableCounters counters_;
};

}  // namespace monolith
