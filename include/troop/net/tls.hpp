/// @file
/// TLS: nobody on the way reads or changes what goes over a connection, and certificates say who is at its
/// ends.
#pragma once

#include <string>

#include <troop/core/error.hpp>

namespace troop::net {

/// How an end speaks TLS (1.2 or 1.3). All files are PEM and read once, by the constructor of the server or
/// client, which throws FileError with the name and the reason for one that cannot be used. There is no way
/// to do without verification: who needs a certificate for a test makes an authority of his own.
///
/// A server needs `certificate` and `key`. With `authority` clients must have a certificate as well (mutual
/// TLS); without it TLS alone keeps nobody out, and that is the token's task. A client takes a server whose
/// certificate comes from `authority` and names `server_name`.
///
///     net::Server server({.listen = "0.0.0.0:7777", .tls = net::TlsOptions{"head.pem", "head.key"}}, ...);
///     net::Client client({.connect = "head:7777", .tls = net::TlsOptions{.authority = "ca.pem"}}, ...);
struct TlsOptions {
  std::string certificate = {};  ///< one's own, followed by the intermediate ones
  std::string key = {};          ///< its private key, without a password, and not to be read by everybody
  /// Authorities from which the other end's certificate must come. Empty: for a client those that the system
  /// trusts, for a server that clients need no certificate.
  std::string authority = {};
  /// Only of clients: the name or IP address that must be among the subject alternative names of the server's
  /// certificate. Empty: the host of `connect`.
  std::string server_name = {};

  void validate() const {
    require(certificate.empty() == key.empty(), "tls",
            certificate.empty() ? "a key without certificate" : "no key",
            "a certificate and its key, or neither");
  }
};

}  // namespace troop::net
