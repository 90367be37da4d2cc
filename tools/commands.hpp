/// @file
/// The commands of the program troop, one in a file of its name or of its kind. Each gets its own words, of which
/// the first is its name, and returns the exit code: 0, or 2 for words that it does not understand. What goes wrong
/// later is thrown as Error, which becomes 1.
#pragma once

namespace troop::tools {

int status(int argc, const char* const* argv);
int top(int argc, const char* const* argv);
int password(int argc, const char* const* argv);

}  // namespace troop::tools
