/// @file
/// Folds the steps of many environments into overlapping sequences of a fixed length, for recurrent networks.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troop/core/dtype.hpp>
#include <troop/core/error.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/replay/n_step.hpp>

namespace troop {

/// The defaults are those of R2D2: 80 steps that count in the loss, 40 more in front of them to burn in, and
/// a new sequence every 40 steps.
struct SequenceOptions {
  std::size_t length = 80;   ///< steps that count in the loss; those of the burn-in are not among them
  std::size_t overlap = 40;  ///< of these, how many the next sequence of the episode has as well
  std::size_t burn_in = 40;  ///< steps in front of them from which only a recurrent state is made
  double gamma = 0.997;      ///< discount of one step

  std::size_t num_steps() const noexcept { return burn_in + length; }  ///< of a sequence
  std::size_t period() const noexcept { return length - overlap; }     ///< steps from start to start

  void validate() const {
    require(length >= 1 && length <= 10'000, "length", length, "an integer from 1 to 10000");
    require(overlap < length, "overlap", overlap, "less than length, " + std::to_string(length));
    require(burn_in <= 10'000, "burn_in", burn_in, "an integer from 0 to 10000");
    require_between("gamma", gamma, 0.0, 1.0);
  }
};

/// A sequence of T = burn_in + length steps, of which the first `steps` were made; the rest is zero. The
/// spans are valid during the call that receives it.
template <class Scalar>
struct SequenceItem {
  /// T + 1 rows. Row t is what was acted on at step t; row `steps` is the observation after the last step, to
  /// bootstrap from: at an episode's end that episode's own last observation.
  std::span<const Scalar> observations;
  std::span<const std::int32_t> actions;  ///< [T]
  std::span<const float> rewards;         ///< [T], of one step each
  std::span<const float> discounts;       ///< [T]: gamma, or 0 where the episode terminated
  std::span<const float> action_values;   ///< [T]: Q(s, a) when the action was chosen
  std::span<const bool> valid;            ///< [T]: false for padding
  std::span<const bool> loss_mask;        ///< [T]: what counts in the loss: neither burn-in nor padding
  std::span<const float> state;           ///< recurrent state in front of the first step
  std::size_t steps = 0;
  std::size_t burn_in = 0;  ///< steps that do not count in the loss: 0 for the first sequence of an episode
};

/// For each environment the steps since the last sequence began. A sequence is emitted when it is full and
/// when its episode ends, the latter padded with zeros; none crosses an episode's end. With p = length -
/// overlap, sequence k of an episode has the steps from k p on. Source: Kapturowski et al. 2019 (R2D2),
/// section 2.3.
///
/// Burn-in is in addition to `length`, as in the paper's "m = 80 (+ prefix of l = 40)". It repairs a stored
/// state that older parameters computed. In front of an episode's first step nothing is to be repaired, for
/// every network begins there with the same state; so the first sequence has no burn-in, and all its
/// burn_in + length steps count. Were its first steps burnt in like those of the others, the beginnings of
/// episodes would never be trained on. Hence
/// - each step of an episode counts in the loss of at least one sequence, the tail included, and in that of
///   exactly one where `overlap` is 0;
/// - the loss parts of consecutive sequences have exactly `overlap` steps in common (where an episode ends
///   just with a full sequence, none follows).
///
/// A learner that unrolls the first `burn_in` steps of every sequence without a gradient, whatever the mask
/// says, remains right and only leaves those beginnings out.
///
/// `add` costs one copy of the observation, and with a full sequence one of the T - p steps that the next one
/// shares; no allocation. At most one sequence is emitted a step. Different environments may be used from
/// different threads.
///
///     Sequences<float> sequences(num_environments, 4, state_size, {.length = 80, .overlap = 40});
///     PrioritizedReplay<DynamicRecord> replay(
///         {.capacity = 10'000, .alpha = 0.9},
///         sequence_layout(sequences.options(), DType::f32, {4}, state_size));
///     RecordArray record(replay.layout(), 1);
///     sequences.add(i, step, state, [&](const SequenceItem<float>& item) {
///       write_sequence(item, record.layout(), record.record(0));   // or: write_sequence(item, my_aggregate)
///       replay.add(record.view(), priority);
///     });
template <class Scalar>
class Sequences {
 public:
  static constexpr std::size_t kMaxObservation = std::size_t{1} << 30;  ///< elements
  static constexpr std::size_t kMaxState = std::size_t{1} << 24;        ///< elements

  /// `state_size` floats are the recurrent state; 0 for sequences that begin with a state of zeros.
  Sequences(std::size_t num_environments, std::size_t observation_size, std::size_t state_size,
            const SequenceOptions& options)
      : options_((options.validate(), options)),
        num_steps_(options_.num_steps()),
        period_(options_.period()),
        observation_size_(observation_size),
        state_size_(state_size) {
    require(num_environments >= 1, "num_environments", num_environments, "a positive integer");
    require(observation_size >= 1 && observation_size <= kMaxObservation, "observation_size",
            observation_size, "an integer from 1 to 2^30");
    require(state_size <= kMaxState, "state_size", state_size, "an integer from 0 to 2^24");
    windows_.resize(num_environments);
    for (auto& window : windows_) {
      window.observations.resize((num_steps_ + 1) * observation_size);
      window.actions.resize(num_steps_);
      window.rewards.resize(num_steps_);
      window.discounts.resize(num_steps_);
      window.action_values.resize(num_steps_);
      window.masks = std::make_unique<bool[]>(2 * num_steps_);
      window.states.resize((num_steps_ + period_ - 1) / period_ * state_size);
    }
  }

  std::size_t num_environments() const noexcept { return windows_.size(); }
  std::size_t state_size() const noexcept { return state_size_; }
  const SequenceOptions& options() const noexcept { return options_; }

  /// Steps of environment `i` that count in the loss of no emitted sequence yet.
  std::size_t pending(std::size_t i) const noexcept {
    return windows_[i].size - (windows_[i].first ? 0 : num_steps_ - period_);
  }

  /// Takes a step, with the recurrent state from which its action was computed, and calls `emit(const
  /// SequenceItem<Scalar>&)` when it completes a sequence. Of `step.next_observation` only that of a
  /// sequence's last step is looked at. When `emit` throws, that sequence is lost; nothing else is.
  template <class Emit>
  void add(std::size_t i, const EnvironmentStep<Scalar>& step, std::span<const float> state, Emit&& emit) {
    assert(i < windows_.size());
    assert(step.observation.size() == observation_size_ && step.next_observation.size() == observation_size_);
    assert(state.size() == state_size_);
    Window& window = windows_[i];
    const std::size_t place = window.size++;
    copy_to(window.observations, place, step.observation);
    if (place % period_ == 0) copy_to(window.states, place / period_, state);
    window.actions[place] = step.action;
    window.rewards[place] = step.reward;
    window.discounts[place] = step.terminated ? 0.0f : static_cast<float>(options_.gamma);
    window.action_values[place] = step.action_value;
    const bool episode_ended = step.terminated || step.truncated;
    if (!episode_ended && window.size < num_steps_) return;
    copy_to(window.observations, window.size, step.next_observation);
    const Emitted emitted{*this, window, episode_ended};
    const SequenceItem<Scalar> item = finish(window);
    emit(item);
  }

  /// Forgets the pending steps of environment `i`, as when it was reset in the middle of an episode.
  void clear(std::size_t i) noexcept { begin_episode(windows_[i]); }

 private:
  /// The sequence that is being filled, with those that begin within it.
  struct Window {
    std::vector<Scalar> observations;
    std::vector<std::int32_t> actions;
    std::vector<float> rewards, discounts, action_values;
    std::unique_ptr<bool[]> masks;  // valid, then loss_mask
    std::vector<float> states;      // in front of steps 0, p, 2 p, ...
    std::size_t size = 0;           // steps
    bool first = true;              // of its episode
  };

  /// Makes room for what comes next, whatever happens.
  struct Emitted {
    const Sequences& sequences;
    Window& window;
    bool episode_ended;
    ~Emitted() {
      if (episode_ended) {
        begin_episode(window);
      } else {
        sequences.drop_period(window);
      }
    }
  };

  template <class T>
  static void copy_to(std::vector<T>& rows, std::size_t row, std::span<const T> from) noexcept {
    std::copy(from.begin(), from.end(), rows.begin() + static_cast<std::ptrdiff_t>(row * from.size()));
  }

  static void begin_episode(Window& window) noexcept {
    window.size = 0;
    window.first = true;
  }

  /// Fills what was not made with zeros.
  SequenceItem<Scalar> finish(Window& window) const noexcept {
    const std::size_t burn_in = window.first ? 0 : options_.burn_in;
    const auto pad = [](auto& values, std::size_t from) {
      std::fill(values.begin() + static_cast<std::ptrdiff_t>(from), values.end(), 0);
    };
    pad(window.observations, (window.size + 1) * observation_size_);
    pad(window.actions, window.size);
    pad(window.rewards, window.size);
    pad(window.discounts, window.size);
    pad(window.action_values, window.size);
    const std::span<bool> valid(window.masks.get(), num_steps_),
        loss_mask(valid.data() + num_steps_, num_steps_);
    for (std::size_t t = 0; t < num_steps_; ++t) {
      valid[t] = t < window.size;
      loss_mask[t] = valid[t] && t >= burn_in;
    }
    return {.observations = window.observations,
            .actions = window.actions,
            .rewards = window.rewards,
            .discounts = window.discounts,
            .action_values = window.action_values,
            .valid = valid,
            .loss_mask = loss_mask,
            .state = std::span<const float>(window.states).first(state_size_),
            .steps = window.size,
            .burn_in = burn_in};
  }

  /// Moves to the front what the next sequence of the episode shares with the one that was full.
  void drop_period(Window& window) const noexcept {
    const auto drop = [](auto& values, std::size_t count) {
      std::copy(values.begin() + static_cast<std::ptrdiff_t>(count), values.end(), values.begin());
    };
    drop(window.observations, period_ * observation_size_);
    drop(window.actions, period_);
    drop(window.rewards, period_);
    drop(window.discounts, period_);
    drop(window.action_values, period_);
    drop(window.states, state_size_);
    window.size = num_steps_ - period_;
    window.first = false;
  }

  SequenceOptions options_;
  std::size_t num_steps_, period_, observation_size_, state_size_;
  std::vector<Window> windows_;
};

/// The record of a sequence, for `PrioritizedReplay<DynamicRecord>`, with T = burn_in + length: observation
/// [T + 1, shape...]; action, reward, discount, valid, loss_mask, all [T]; state [state_size], which is left
/// out where that is 0; and steps.
inline RecordLayout sequence_layout(const SequenceOptions& options, DType dtype,
                                    const std::vector<std::size_t>& observation_shape,
                                    std::size_t state_size) {
  options.validate();
  const std::size_t num_steps = options.num_steps();
  std::vector<std::size_t> shape{num_steps + 1};
  shape.insert(shape.end(), observation_shape.begin(), observation_shape.end());
  std::vector<Field> fields{
      {"observation", dtype, std::move(shape)}, {"action", DType::i32, {num_steps}},
      {"reward", DType::f32, {num_steps}},      {"discount", DType::f32, {num_steps}},
      {"valid", DType::boolean, {num_steps}},   {"loss_mask", DType::boolean, {num_steps}}};
  if (state_size > 0) fields.push_back({"state", DType::f32, {state_size}});
  fields.push_back({"steps", DType::u32, {}});
  return RecordLayout(std::move(fields));
}

/// Writes a sequence into a record: the fields that are called as in `sequence_layout`, or action_value, in
/// any order and shape. Other fields are left as they are; what of a sequence has no field is not written.
///
/// Throws InvalidArgument when a field of that name has another dtype or number of elements.
template <class Scalar>
void write_sequence(const SequenceItem<Scalar>& item, const RecordLayout& layout, std::byte* record) {
  const auto write = [&]<class T>(std::string_view name, std::span<const T> values) {
    if (!layout.has(name)) return;
    const Field& field = layout.field(name);
    if (field.dtype != dtype_of<T>() || field.count() != values.size()) {
      throw InvalidArgument(
          std::string(name), to_string(field),
          std::string(name_of(dtype_of<T>())) + " with " + std::to_string(values.size()) + " elements");
    }
    if (!values.empty()) std::memcpy(record + field.offset, values.data(), values.size_bytes());
  };
  const auto steps = static_cast<std::uint32_t>(item.steps);
  write("observation", item.observations);
  write("action", item.actions);
  write("reward", item.rewards);
  write("discount", item.discounts);
  write("action_value", item.action_values);
  write("valid", item.valid);
  write("loss_mask", item.loss_mask);
  write("state", item.state);
  write("steps", std::span<const std::uint32_t>(&steps, 1));
}

/// The same for an aggregate.
///
///     struct SequenceRecord {                                     // length 3, burn_in 2, observations of 4
///       std::array<std::array<float, 4>, 6> observation;
///       std::array<std::int32_t, 5> action;
///       std::array<float, 5> reward, discount;
///       std::array<bool, 5> loss_mask;
///       std::array<float, 16> state;
///     };
///     SequenceRecord record;
///     write_sequence(item, record);
template <class Scalar, Record R>
void write_sequence(const SequenceItem<Scalar>& item, R& record) {
  write_sequence(item, RecordLayout::of<R>(), reinterpret_cast<std::byte*>(&record));
}

namespace detail {

/// `name()` is what an error calls the TD errors.
template <class Name>
float mixed_priority(std::span<const float> td_errors, std::span<const bool> mask, double eta, Name name) {
  double greatest = 0.0, sum = 0.0;
  std::size_t count = 0;
  for (std::size_t t = 0; t < td_errors.size(); ++t) {
    if (!mask[t]) continue;
    const double error = std::abs(static_cast<double>(td_errors[t]));
    if (!std::isfinite(error)) {
      throw InvalidArgument(name() + "[" + std::to_string(t) + "]", to_text(td_errors[t]), "a finite number");
    }
    greatest = std::max(greatest, error);
    sum += error;
    ++count;
  }
  if (count == 0) throw InvalidArgument(name() + " that count", "0", "at least one");
  return static_cast<float>(eta * greatest + (1.0 - eta) * (sum / static_cast<double>(count)));
}

}  // namespace detail

/// eta max_t |TD_t| + (1 - eta) mean_t |TD_t| over the steps of the mask (Kapturowski et al. 2019, section
/// 2.3). A mean alone would hide a single large error in a long sequence.
///
/// Throws InvalidArgument when the numbers differ, no step counts, or the TD error of one that does is NaN or
/// infinite; what the others are does not matter.
inline float sequence_priority(std::span<const float> td_errors, std::span<const bool> mask,
                               double eta = 0.9) {
  require_between("eta", eta, 0.0, 1.0);
  require(mask.size() == td_errors.size(), "mask elements", mask.size(),
          "as many as TD errors, " + std::to_string(td_errors.size()));
  return detail::mixed_priority(td_errors, mask, eta, [] { return std::string("td_errors"); });
}

/// The same for each row of two matrices [batch, T]. After an exception the content of `priorities` is
/// unspecified.
inline void sequence_priorities(MatrixView<const float> td_errors, MatrixView<const bool> mask,
                                std::span<float> priorities, double eta = 0.9) {
  require_between("eta", eta, 0.0, 1.0);
  require(mask.rows() == td_errors.rows(), "mask rows", mask.rows(),
          "as many as of TD errors, " + std::to_string(td_errors.rows()));
  require(mask.columns() == td_errors.columns(), "mask columns", mask.columns(),
          "as many as of TD errors, " + std::to_string(td_errors.columns()));
  require(priorities.size() == td_errors.rows(), "priorities", priorities.size(),
          "as many as rows of TD errors, " + std::to_string(td_errors.rows()));
  for (std::size_t i = 0; i < priorities.size(); ++i) {
    priorities[i] = detail::mixed_priority(td_errors.row_span(i), mask.row_span(i), eta,
                                           [i] { return "td_errors[" + std::to_string(i) + "]"; });
  }
}

}  // namespace troop
