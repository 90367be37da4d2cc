/// @file
/// Everything that the examples need: the library, environments, networks, and Ape-X in one call.
#pragma once

#include <troop/apex/options.hpp>
#include <troop/apex/run.hpp>
#include <troop/env/cart_pole.hpp>
#include <troop/troop.hpp>
