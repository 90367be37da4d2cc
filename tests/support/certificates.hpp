/// @file
/// Certificates that are made when a test needs them.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include <troop/core/file.hpp>
#include <troop/net/tls.hpp>

#include "temporary_directory.hpp"

namespace troop::testing {

/// What a certificate says.
struct CertificatePlan {
  std::string names = "DNS:localhost,IP:127.0.0.1";  ///< subject alternative names, in OpenSSL's notation
  long begins = -3600, ends = 24 * 3600;             ///< seconds from now
  std::string key = "EC";                            ///< or RSA
};

/// An authority that certifies what it is asked to. Keeps its files in the directory.
class Authority {
 public:
  Authority(const TemporaryDirectory& directory, const std::string& name)
      : directory_(directory), name_(name), key_(make_key("EC")) {
    certificate_ = certify(*key_, name, {.names = ""}, nullptr);
    write(file(), pem(*certificate_));
  }

  /// Its own certificate.
  std::string file() const { return directory_.file(name_ + ".pem"); }

  /// Makes NAME.pem and NAME.key, and options of who has them and trusts this authority.
  net::TlsOptions issue(const std::string& name, const CertificatePlan& plan = {}) const {
    const Key key = make_key(plan.key);
    const Certificate certificate = certify(*key, name, plan, this);
    net::TlsOptions options{directory_.file(name + ".pem"), directory_.file(name + ".key"), file()};
    write(options.certificate, pem(*certificate));
    write(options.key, pem(*key, nullptr));
    return options;
  }

  /// A private key, with a password if there is one.
  static std::string key_pem(const char* password) { return pem(*make_key("EC"), password); }

  static void write(const std::string& path, const std::string& text) {
    write_file_atomically(path, std::as_bytes(std::span(text)));
    ::chmod(path.c_str(), 0600);
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
    void operator()(BIO* memory) const { BIO_free(memory); }
    void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static void check(bool done) {
    if (!done) throw std::runtime_error("OpenSSL cannot make a certificate");
  }

  static Key make_key(const std::string& kind) {
    Key key(kind == "RSA" ? EVP_PKEY_Q_keygen(nullptr, nullptr, "RSA", std::size_t{2048})
                          : EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
    check(key != nullptr);
    return key;
  }

  /// Signed by `issuer`, or by itself.
  static Certificate certify(EVP_PKEY& key, const std::string& name, const CertificatePlan& plan,
                             const Authority* issuer) {
    static long serial = 0;
    Certificate certificate(X509_new());
    X509* x509 = certificate.get();
    check(x509 != nullptr && X509_set_version(x509, 2) == 1);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(x509), plan.begins);
    X509_gmtime_adj(X509_getm_notAfter(x509), plan.ends);
    X509_set_pubkey(x509, &key);
    const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
    check(X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC, text, -1, -1, 0) == 1);
    X509* by = issuer != nullptr ? issuer->certificate_.get() : x509;
    X509_set_issuer_name(x509, X509_get_subject_name(by));
    X509V3_CTX context;
    X509V3_set_ctx(&context, by, x509, nullptr, nullptr, 0);
    const auto extend = [&](int what, const std::string& value) {
      const std::unique_ptr<X509_EXTENSION, Free> extension(
          X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str()));
      check(extension != nullptr && X509_add_ext(x509, extension.get(), -1) == 1);
    };
    extend(NID_basic_constraints, issuer != nullptr ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (!plan.names.empty()) extend(NID_subject_alt_name, plan.names);
    check(X509_sign(x509, issuer != nullptr ? issuer->key_.get() : &key, EVP_sha256()) > 0);
    return certificate;
  }

  template <class Write>
  static std::string pem_of(Write write) {
    const std::unique_ptr<BIO, Free> memory(BIO_new(BIO_s_mem()));
    check(memory != nullptr && write(memory.get()) == 1);
    std::string text(static_cast<std::size_t>(BIO_pending(memory.get())), '\0');
    check(BIO_read(memory.get(), text.data(), static_cast<int>(text.size())) ==
          static_cast<int>(text.size()));
    return text;
  }
  static std::string pem(X509& certificate) {
    return pem_of([&](BIO* out) { return PEM_write_bio_X509(out, &certificate); });
  }
  static std::string pem(EVP_PKEY& key, const char* password) {
    return pem_of([&](BIO* out) {
      return PEM_write_bio_PKCS8PrivateKey(
          out, &key, password != nullptr ? EVP_aes_256_cbc() : nullptr, password,
          password != nullptr ? static_cast<int>(std::char_traits<char>::length(password)) : 0, nullptr,
          nullptr);
    });
  }

  const TemporaryDirectory& directory_;
  std::string name_;
  Key key_;
  Certificate certificate_;
};

}  // namespace troop::testing
