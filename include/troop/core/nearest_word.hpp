/// @file
/// The word that somebody meant, for "did you mean".
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troop {

/// The number of single-letter changes between two words (Levenshtein 1966). O(|a| |b|).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row[b.size()];
}

/// The first of the words that are nearest to `given`, or "" when all of them differ from it in at least half
/// of its letters.
inline std::string nearest_word(std::string_view given, const std::vector<std::string>& words) {
  std::string nearest;
  std::size_t distance = given.size() / 2;
  for (const std::string& word : words) {
    const std::size_t changes = edit_distance(given, word);
    if (changes >= distance) continue;
    distance = changes;
    nearest = word;
  }
  return nearest;
}

}  // namespace troop
