/// @file
/// Items that say who sent them and the how manyeth they are, and a sink that writes down what reaches it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>

namespace troop::testing {

struct NumberedItem {
  std::uint32_t client;
  std::uint32_t number;
};

inline const RecordLayout& layout() {
  return RecordLayout::of<NumberedItem>();
}

inline std::vector<NumberedItem> numbered(std::uint32_t client, std::uint32_t first, std::size_t count) {
  std::vector<NumberedItem> items;
  for (std::size_t i = 0; i < count; ++i) items.push_back({client, first + static_cast<std::uint32_t>(i)});
  return items;
}

inline BatchView view(const std::vector<NumberedItem>& items) {
  return BatchView(std::span<const NumberedItem>(items));
}

/// Takes items as a replay would. Thread-safe.
class RecordingSink {
 public:
  Outcome insert(const BatchView& records, std::span<const float> priorities) {
    const std::lock_guard lock(mutex_);
    if (outcome_ != Outcome::ok) return outcome_;
    for (std::size_t i = 0; i < records.size(); ++i) {
      NumberedItem item;
      std::memcpy(&item, records.record(i), sizeof item);
      items_[item.client].push_back(item.number);
      if (priorities[i] != static_cast<float>(item.number)) bad_priority_ = true;
      ++count_;
    }
    return Outcome::ok;
  }

  auto callable() {
    return [this](const BatchView& records, std::span<const float> priorities) {
      return insert(records, priorities);
    };
  }

  /// What `insert` returns from now on; ok takes items.
  void answer(Outcome outcome) {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
  }

  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

  /// What is wrong with what came of `client`, who sent items 0 to count - 1; empty when each came once, in
  /// order.
  std::string fault(std::uint32_t client, std::size_t count) const {
    const std::lock_guard lock(mutex_);
    if (bad_priority_) return "a priority that is not the item's";
    const auto found = items_.find(client);
    const std::size_t came = found == items_.end() ? 0 : found->second.size();
    for (std::size_t i = 0; i < came; ++i) {
      if (found->second[i] != i) {
        return "client " + std::to_string(client) + ": item " + std::to_string(found->second[i]) +
               " in place " + std::to_string(i);
      }
    }
    if (came == count) return {};
    return "client " + std::to_string(client) + ": " + std::to_string(came) + " items of " +
           std::to_string(count);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> items_;
  std::size_t count_ = 0;
  Outcome outcome_ = Outcome::ok;
  bool bad_priority_ = false;
};

/// Priorities as the sink expects them.
inline std::vector<float> priorities_of(const std::vector<NumberedItem>& items) {
  std::vector<float> priorities;
  for (const auto& item : items) priorities.push_back(static_cast<float>(item.number));
  return priorities;
}

/// Waits until `ready()`, half a minute at most; returns the last `ready()`.
template <class Ready>
bool eventually(Ready ready) {
  const auto deadline = Deadline::after(std::chrono::seconds(30));
  while (!ready()) {
    if (deadline.has_passed()) return ready();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Lines of a log, from any thread.
class Lines {
 public:
  auto callable() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  bool has(const std::string& part) const {
    for (const auto& line : all()) {
      if (line.find(part) != std::string::npos) return true;
    }
    return false;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace troop::testing
