/// @file
/// A kind of replay as one type, for tests that go through several.
#pragma once

namespace troop::testing {

template <class Record_, class Sampler_, class Remover_>
struct Policies {
  using Record = Record_;
  using Sampler = Sampler_;
  using Remover = Remover_;
};

}  // namespace troop::testing
