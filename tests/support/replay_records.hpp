/// @file
/// Records of different sizes whose every byte follows from one number, so that a torn one is recognised.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <troop/core/hash.hpp>
#include <troop/core/record.hpp>

namespace troop::testing {

/// 44 bytes: what CartPole needs.
struct SmallRecord {
  std::array<std::uint32_t, 4> observation;
  std::int32_t action;
  std::uint32_t reward, discount;
  std::array<std::uint32_t, 4> next_observation;
};
static_assert(sizeof(SmallRecord) == 44);

/// The smallest record that the replay copies outside of its lock.
struct BoundaryRecord {
  std::array<std::uint32_t, 256> words;
};
static_assert(sizeof(BoundaryRecord) == 1024);

/// Two KiB.
struct LargeRecord {
  std::array<std::uint64_t, 255> words;
  std::uint32_t more[2];
};
static_assert(sizeof(LargeRecord) == 2048);

/// The record of a number: the number itself, words drawn from it, and their checksum.
template <class Record>
Record record_of(std::uint32_t number) {
  std::array<std::uint32_t, sizeof(Record) / 4> words;
  std::uint64_t state = number;
  for (auto& word : words) word = static_cast<std::uint32_t>(split_mix(state));
  words.front() = number;
  words.back() = crc32c(std::as_bytes(std::span(words)).first(sizeof(Record) - 4));
  Record record;
  std::memcpy(&record, words.data(), sizeof(Record));
  return record;
}

inline constexpr std::uint32_t kTorn = 0xffffffffu;

/// The number of a record, kTorn when some of its bytes belong to another.
template <class Record>
std::uint32_t number_of(const Record& record) {
  std::uint32_t number;
  std::memcpy(&number, &record, 4);
  const Record expected = record_of<Record>(number);
  return std::memcmp(&record, &expected, sizeof(Record)) == 0 ? number : kTorn;
}

template <class Record>
std::vector<Record> records_from(std::uint64_t first, std::size_t count) {
  std::vector<Record> records;
  records.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    records.push_back(record_of<Record>(static_cast<std::uint32_t>(first + i)));
  return records;
}

}  // namespace troop::testing
