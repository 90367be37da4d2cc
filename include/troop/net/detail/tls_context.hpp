/// @file
/// What all TLS connections of a server, or of a client, have in common.
#pragma once

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <troop/core/error.hpp>
#include <troop/core/file.hpp>
#include <troop/net/detail/asio.hpp>
#include <troop/net/tls.hpp>

namespace troop::net::detail {

/// Whether this looks like what a TLS client says first.
inline bool is_tls_record(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 2 && bytes[0] == std::byte{22} && bytes[1] == std::byte{3};
}

/// What all connections of a server, or of a client, have in common.
class TlsContext {
 public:
  /// Of a server.
  explicit TlsContext(const TlsOptions& options) : context_(asio::ssl::context::tls_server) {
    set_up(options);
    if (!options.authority.empty())
      context_.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
  }

  /// Of a client that connects to `host`.
  TlsContext(const TlsOptions& options, const std::string& host)
      : context_(asio::ssl::context::tls_client),
        name_(options.server_name.empty() ? host : options.server_name) {
    set_up(options);
    if (options.authority.empty()) context_.set_default_verify_paths();
    context_.set_verify_mode(asio::ssl::verify_peer);
    error_code no_number;
    asio::ip::make_address(name_, no_number);
    is_host_ = static_cast<bool>(no_number);
    X509_VERIFY_PARAM* param = SSL_CTX_get0_param(context_.native_handle());
    X509_VERIFY_PARAM_set_hostflags(
        param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    const int is_set = is_host_ ? X509_VERIFY_PARAM_set1_host(param, name_.data(), name_.size())
                                : X509_VERIFY_PARAM_set1_ip_asc(param, name_.c_str());
    if (is_set != 1) throw InvalidArgument("tls.server_name", name_, "a host's name or IP address");
  }

  asio::ssl::context& get() noexcept { return context_; }

  /// Says to the server which name is meant.
  void name_server(SSL* ssl) noexcept {
    if (is_host_) SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name_.data());
  }

  /// Why the handshake, or what came of it, failed; `peer` is "server" or "client".
  std::string failure(const SSL* ssl, const error_code& error, const std::string& peer) const {
    if (error == asio::error::eof || error == asio::ssl::error::stream_truncated)
      return "the " + peer + " closed the connection";
    if (error.category() != asio::error::get_ssl_category()) return error.message();
    const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
    const char* known = ERR_reason_error_string(static_cast<unsigned long>(error.value()));
    const std::string text = known != nullptr ? known : error.message();
    if (reason > SSL_AD_REASON_OFFSET) {  // "tlsv1 alert unknown ca"
      const std::size_t alert = text.find("alert ");
      return "the " + peer + " ended TLS: " + (alert == std::string::npos ? text : text.substr(alert + 6));
    }
    switch (reason) {
      case SSL_R_CERTIFICATE_VERIFY_FAILED:
        return refused_certificate(SSL_get_verify_result(ssl), peer);
      case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "this server wants a certificate, and the client has none";
      case SSL_R_WRONG_VERSION_NUMBER:
      case SSL_R_HTTP_REQUEST:
        return "the " + peer + " does not speak TLS";
      default:
        return "TLS: " + text;
    }
  }

 private:
  static constexpr std::size_t kMaxFileBytes = 1 << 20;

  void set_up(const TlsOptions& options) {
    SSL_CTX* context = context_.native_handle();
    // Certificates are looked at for each connection: none is resumed.
    SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context, 0);
    if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1)  // of TLS 1.2
      throw Error("OpenSSL offers no TLS 1.2 with forward secrecy");
    context_.set_password_callback([](std::size_t, asio::ssl::context::password_purpose) { return ""; });
    if (!options.certificate.empty()) load_certificate(options.certificate, options.key);
    if (!options.authority.empty()) load_authority(options.authority);
  }

  static std::vector<std::byte> read(const std::string& path) {
    std::vector<std::byte> bytes = read_file(path, kMaxFileBytes);
    if (bytes.empty()) throw FileError(path, "is empty");
    return bytes;
  }

  void load_certificate(const std::string& path, const std::string& key_path) {
    error_code error;
    const std::vector<std::byte> chain = read(path);
    context_.use_certificate_chain(asio::buffer(chain), error);
    if (error) throw FileError(path, "is no certificate in PEM: " + error.message());
    const X509* leaf = SSL_CTX_get0_certificate(context_.native_handle());
    if (X509_cmp_current_time(X509_get0_notAfter(leaf)) < 0)
      throw FileError(path, "the certificate expired at " + to_text(X509_get0_notAfter(leaf)));
    if (X509_cmp_current_time(X509_get0_notBefore(leaf)) > 0)
      throw FileError(path, "the certificate is not valid before " + to_text(X509_get0_notBefore(leaf)));

    struct stat status {};
    if (::stat(key_path.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0)
      throw FileError(key_path, "can be read by everybody; a private key must not (chmod o-r)");
    std::vector<std::byte> key = read(key_path);
    context_.use_private_key(asio::buffer(key), asio::ssl::context::pem, error);
    OPENSSL_cleanse(key.data(), key.size());
    const bool is_other = error && ERR_GET_LIB(static_cast<unsigned long>(error.value())) == ERR_LIB_X509;
    if (error && !is_other)
      throw FileError(key_path, "is no private key in PEM, without a password: " + error.message());
    if (is_other || SSL_CTX_check_private_key(context_.native_handle()) != 1)
      throw FileError(key_path, "is not the key of the certificate " + path);
  }

  void load_authority(const std::string& path) {
    error_code error;
    const std::vector<std::byte> certificates = read(path);
    context_.add_certificate_authority(asio::buffer(certificates), error);
    if (error) throw FileError(path, "is no certificate in PEM: " + error.message());
  }

  std::string refused_certificate(long verdict, const std::string& peer) const {
    if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH)
      return "the server's certificate is not for " + name_;
    return "the " + peer + "'s certificate is refused: " + X509_verify_cert_error_string(verdict);
  }

  static std::string to_text(const ASN1_TIME* time) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> memory(BIO_new(BIO_s_mem()), BIO_free);
    char text[64] = "";
    if (memory != nullptr && ASN1_TIME_print(memory.get(), time) == 1)
      BIO_gets(memory.get(), text, sizeof text);
    return text;
  }

  asio::ssl::context context_;
  std::string name_;
  bool is_host_ = false;
};

}  // namespace troop::net::detail
