/// @file
/// The status page.
#pragma once

#include <string_view>

namespace troop::monitor::detail {

inline constexpr std::string_view kStatusPage = R"page(<!doctype html>
<title>troop</title>
)page";

}  // namespace troop::monitor::detail
