/// @file
/// The CPU library without network, monitor and command line.
#pragma once

#include <troop/core/clock.hpp>
#include <troop/core/error.hpp>
#include <troop/core/memory.hpp>
#include <troop/core/queue.hpp>
#include <troop/core/random.hpp>
#include <troop/core/record.hpp>
#include <troop/core/view.hpp>
#include <troop/replay/array_storage.hpp>
#include <troop/replay/n_step.hpp>
#include <troop/replay/prioritized_replay.hpp>
#include <troop/replay/rate_limiter.hpp>
#include <troop/replay/sum_tree.hpp>
#include <troop/version.hpp>
