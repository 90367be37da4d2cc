/// @file
/// Memory that a call needs for a moment.
#pragma once

namespace troop::detail {

/// One for each thread and type, kept between calls so that they allocate nothing. Not for a call within
/// which the same thread may make another that uses it.
template <class Scratch>
Scratch& of_this_thread() {
  thread_local Scratch instance;
  return instance;
}

}  // namespace troop::detail
