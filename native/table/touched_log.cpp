#include "table/touched_log.h"

#include <algorithm>
#include <new>

namespace monolith {
namespace {

size_t bytes_of(const TouchedLog::Segment& segment) {
  return sizeof(segment) + (segment.keys.capacity() + segment.extra.capacity()) * sizeof(int64_t);
}

}  // namespace

void TouchedLog::append(Segments& segments) noexcept {
  segments.remove_if([](const Segment& segment) { return segment.size() == 0; });
  if (segments.empty()) return;
  for (Segment& segment : segments) segment.keys.shrink();
  const std::lock_guard lock(mutex_);
  for (const Segment& segment : segments) bytes_ += bytes_of(segment);
  next_ += segments.size();
  segments_.splice(segments_.end(), segments);
  while (bytes_ > max_bytes_ && !segments_.empty()) pop();
  for (auto& [name, at] : cursors_) {
    if (at < first_) at = kBehind;
  }
}

void TouchedLog::pop() noexcept {
  bytes_ -= bytes_of(segments_.front());
  segments_.pop_front();
  ++first_;
}

// Drops what nobody will read.
void TouchedLog::trim() noexcept {
  uint64_t least = next_;
  for (const auto& [name, at] : cursors_) least = std::min(least, at);
  while (first_ < least && !segments_.empty()) pop();
}

TouchedLog::Range TouchedLog::begin_read(const std::string& cursor) {
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = cursors_.try_emplace(cursor, kBehind);
  const bool is_full = found->second == kBehind;
  if (is_full) found->second = next_;  // what comes now is for the next read
  return {is_full, found->second, next_};
}

bool TouchedLog::copy(const Range& range, std::vector<int64_t>& keys) {
  const std::lock_guard lock(mutex_);
  if (range.first < first_ && range.first < range.last) return false;
  uint64_t number = first_;
  for (const Segment& segment : segments_) {
    if (number >= range.last) break;
    if (number++ < range.first) continue;
    keys.insert(keys.end(), segment.keys.begin(), segment.keys.end());
    keys.insert(keys.end(), segment.extra.begin(), segment.extra.end());
  }
  return true;
}

void TouchedLog::end_read(const std::string& cursor, const Range& range) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = cursors_.find(cursor);
  // What came since begin_read() may be gone already, by the bound or by forget().
  if (found != cursors_.end()) found->second = first_ > range.last ? kBehind : range.last;
  trim();
}

void TouchedLog::leave_behind(const std::string& cursor) {
  const std::lock_guard lock(mutex_);
  cursors_[cursor] = kBehind;
  trim();
}

bool TouchedLog::drop(const std::string& cursor) noexcept {
  const std::lock_guard lock(mutex_);
  const bool existed = cursors_.erase(cursor) > 0;
  trim();
  return existed;
}

std::vector<std::string> TouchedLog::cursors() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, at] : cursors_) names.push_back(name);
  return names;
}

void TouchedLog::forget() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [name, at] : cursors_) at = kBehind;
  while (!segments_.empty()) pop();
  first_ = ++next_;  // as if something had gone, for a cursor that is being read
}

size_t TouchedLog::bytes() noexcept {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace monolith
