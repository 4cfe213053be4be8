// Frees retired memory once every call that may still read it has ended (epoch-based reclamation).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace monolith {

// Thread-safe. A call holds a Guard while it uses pointers that a writer may retire. Owners of
// retired blocks call reclaim() in their destructors, when no Guard exists any more.
class Epochs {
  struct ThreadState;

 public:
  Epochs() = default;
  ~Epochs();
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;

  class Guard {
   public:
    explicit Guard(Epochs& epochs) : epochs_(epochs), state_(epochs.enter()) {}
    ~Guard() {
      state_->epoch.store(0, std::memory_order_release);
      epochs_.reclaim();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    // Ends the use of every pointer that the guard has protected so far.
    void refresh() noexcept;

   private:
    Epochs& epochs_;
    ThreadState* state_;
  };

  using Free = void (*)(void* owner, void* block, size_t bytes);

  // After reserve(n), the next `n` calls of retire() cannot fail. Each reservation is used by one
  // retire(), or returned by unreserve().
  void reserve(size_t n);
  void unreserve(size_t n) noexcept;
  // Calls free(owner, block, bytes) once no Guard protects the block.
  void retire(Free free, void* owner, void* block, size_t bytes) noexcept;
  // Frees every retired block that no Guard protects.
  void reclaim() noexcept;

 private:
  static constexpr int kThreadStates = 8;
  struct alignas(64) ThreadState {
    std::atomic<uint64_t> epoch{0};  // 0: free
  };
  struct Block {
    ThreadState states[kThreadStates];
    std::atomic<Block*> next{nullptr};
  };
  struct RetiredBlock {
    Free free;
    void* owner;
    void* block;
    size_t bytes;
    uint64_t epoch;
  };

  ThreadState* enter();
  uint64_t oldest() noexcept;

  Block first_;
  std::atomic<uint64_t> epoch_{1};
  std::atomic<size_t> num_retired_{0};
  std::mutex mutex_;
  size_t reserved_ = 0;
  std::vector<RetiredBlock> retired_;
};

}  // namespace monolith
