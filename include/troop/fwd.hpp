/// @file
/// The names of troop's main types without their definitions, with their default template arguments.
#pragma once

#include <cstdint>

namespace troop {

class BatchView;
struct BetaSchedule;
class Deadline;
class MinMaxTree;
class Random;
class RateLimiter;
class RecordArray;
class RecordLayout;
class SumTree;
class ThreadGroup;
class ThreadPool;

class ArrayStorage;
class ProportionalSampler;
class RankBasedSampler;
struct OldestFirstRemover;

namespace detail {
class FrameHash;
}  // namespace detail

struct RawFrames;
template <class Codec = RawFrames, class Hash = detail::FrameHash>
class FrameStorage;

/// Saves objects by what they say to Cereal; defined in <troop/serialization/cereal.hpp>.
template <class T>
struct CerealSerializer;
template <class T, class Serializer = CerealSerializer<T>>
class HeapStorage;

/// Stands for a record whose layout is known only at run time: `PrioritizedReplay<DynamicRecord>`.
struct DynamicRecord;

template <class T>
class BoundedQueue;
template <class T>
class MatrixView;
template <class Record>
class Batch;
template <class Record, class Storage = ArrayStorage, class Sampler = ProportionalSampler,
          class Remover = OldestFirstRemover>
class PrioritizedReplay;
template <class Shard>
class ShardedReplay;
template <class Scalar>
class NStep;
template <class Scalar>
class Sequences;

namespace detail {
template <class Replay>
class SnapshotAccess;
}  // namespace detail

/// The number of an inserted item: grows by one for each insert and is never given again.
using Key = std::uint64_t;

namespace nn {
class EigenNetwork;
class Network;
class Optimizer;
class TransitionBatch;
}  // namespace nn

namespace env {
class CartPole;
class Catch;
struct Spec;
template <class Environment>
class VectorEnvironment;
}  // namespace env

namespace agent {
class ParameterStore;
}  // namespace agent

namespace apex {
struct Options;
}  // namespace apex

}  // namespace troop
