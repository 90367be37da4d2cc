/// @file
/// Looks a host's name up without keeping anybody waiting beyond his deadline.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <troop/core/clock.hpp>
#include <troop/net/address.hpp>
#include <troop/net/detail/asio.hpp>

namespace troop::net::detail {

/// Looks names up in threads of its own: the system's function cannot be interrupted and may take half a
/// minute, and a program that wants to end must not wait for it. While there is no answer the same is asked anew
/// every `patience`, for a question that was lost does not come back when the name service does; whatever answers
/// first counts. A look-up that was given up ends by itself later and is forgotten; no more than `kMaxUnderWay`
/// are under way. Belongs to one io_context, in whose thread everything is called.
class Resolver {
 public:
  using Endpoints = std::vector<tcp::endpoint>;
  /// A host's IP addresses as text, in place of the system's function; what it throws counts as none.
  using LookUp = std::function<std::vector<std::string>(const std::string& host)>;
  static constexpr int kMaxUnderWay = 32;

  explicit Resolver(asio::io_context& io, LookUp look_up = {},
                    Clock::duration patience = std::chrono::seconds(1))
      : io_(io), done_(io), look_up_(std::move(look_up)), patience_(patience) {}

  /// The address's endpoints; none, and an error, when there are none or the deadline passes or `cancel` is
  /// called.
  asio::awaitable<Endpoints> resolve(Address address, Deadline deadline, error_code& error) {
    const auto number = asio::ip::make_address(address.host, error);
    if (!error) {
      Endpoints endpoints(1, tcp::endpoint(number, address.port));
      co_return endpoints;
    }
    const auto question = std::make_shared<Question>();
    question->resolver = this;
    question_ = question;
    is_cancelled_ = false;
    bool is_over = false;
    while (!is_over) {
      if (*under_way_ < kMaxUnderWay) ask(address, question);
      co_await done_.wait_until(std::min(deadline.time(), Clock::now() + patience_));
      const std::lock_guard lock(question->mutex);
      is_over = question->is_answered || is_cancelled_ || Clock::now() >= deadline.time();
    }
    forget();
    const std::lock_guard lock(question->mutex);
    error = question->is_answered ? question->error : error_code(asio::error::timed_out);
    if (!error && question->endpoints.empty()) error = asio::error::host_not_found;
    co_return std::move(question->endpoints);
  }

  /// Ends the look-up that is under way.
  void cancel() {
    is_cancelled_ = true;
    done_.notify();
  }

  ~Resolver() { forget(); }
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

 private:
  struct Question {
    std::mutex mutex;
    Resolver* resolver = nullptr;  // null when nobody waits any more
    bool is_answered = false;
    Endpoints endpoints;
    error_code error;
  };

  static Endpoints ask_system(const Address& address, error_code& error) {
    asio::io_context io;
    tcp::resolver resolver(io);
    Endpoints endpoints;
    for (const auto& entry : resolver.resolve(address.host, std::to_string(address.port), error))
      endpoints.push_back(entry.endpoint());
    return endpoints;
  }

  static Endpoints ask(const LookUp& look_up, const Address& address, error_code& error) {
    Endpoints endpoints;
    try {
      for (const std::string& number : look_up(address.host))
        endpoints.emplace_back(asio::ip::make_address(number), address.port);
    } catch (const std::exception&) {
      endpoints.clear();
    }
    if (endpoints.empty()) error = asio::error::host_not_found;
    return endpoints;
  }

  void ask(const Address& address, std::shared_ptr<Question> question) {
    std::thread([question, address, look_up = look_up_, under_way = under_way_] {
      error_code failure;
      Endpoints found = look_up ? ask(look_up, address, failure) : ask_system(address, failure);
      --*under_way;
      const std::lock_guard lock(question->mutex);
      if (question->resolver == nullptr || question->is_answered) return;
      question->endpoints = std::move(found);
      question->error = failure;
      question->is_answered = true;
      asio::post(question->resolver->io_, [question] {
        if (question->resolver != nullptr) question->resolver->done_.notify();
      });
    }).detach();
    ++*under_way_;
  }

  void forget() {
    if (!question_) return;
    const std::lock_guard lock(question_->mutex);
    question_->resolver = nullptr;
  }

  asio::io_context& io_;
  Event done_;
  LookUp look_up_;
  Clock::duration patience_;
  bool is_cancelled_ = false;
  std::shared_ptr<Question> question_;
  // Look-ups, also those that nobody waits for.
  std::shared_ptr<std::atomic<int>> under_way_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace troop::net::detail
