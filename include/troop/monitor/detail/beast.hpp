/// @file
/// The parts of Boost.Beast that the HTTP server uses.
#pragma once

#include <troop/net/detail/asio.hpp>  // first: it sets what Asio needs

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/verb.hpp>
#include <boost/beast/http/write.hpp>

namespace troop::monitor::detail {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::beast::flat_buffer;
using net::detail::error_code;
using net::detail::Event;
using net::detail::into;
using net::detail::tcp;

}  // namespace troop::monitor::detail
