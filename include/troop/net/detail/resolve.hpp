/// @file
/// Looks a host's name up without keeping anybody waiting beyond his deadline.
#pragma once

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
/// minute, and a program that wants to end must not wait for it. A look-up that was given up ends by itself
/// later and is forgotten. Belongs to one io_context, in whose thread everything is called.
class Resolver {
 public:
  using Endpoints = std::vector<tcp::endpoint>;
  /// The system's function, or what a test puts in its place.
  using LookUp = std::function<Endpoints(const Address&, error_code&)>;

  explicit Resolver(asio::io_context& io, LookUp look_up = system_look_up)
      : io_(io), done_(io), look_up_(std::move(look_up)) {}

  /// The address's endpoints; none, and an error, when there are none or the deadline passes or `cancel` is
  /// called.
  asio::awaitable<Endpoints> resolve(Address address, Deadline deadline, error_code& error) {
    const auto number = asio::ip::make_address(address.host, error);
    if (!error) {
      Endpoints endpoints(1, tcp::endpoint(number, address.port));
      co_return endpoints;
    }
    const auto job = std::make_shared<Job>();
    job->resolver = this;
    job_ = job;
    std::thread([job, address, look_up = look_up_] {
      error_code failure;
      Endpoints found = look_up(address, failure);
      const std::lock_guard lock(job->mutex);
      if (job->resolver == nullptr) return;
      job->endpoints = std::move(found);
      job->error = failure;
      job->is_done = true;
      asio::post(job->resolver->io_, [job] {
        if (job->resolver != nullptr) job->resolver->done_.notify();
      });
    }).detach();
    co_await done_.wait_until(deadline.time());
    forget();
    const std::lock_guard lock(job->mutex);
    error = job->is_done ? job->error : error_code(asio::error::timed_out);
    if (!error && job->endpoints.empty()) error = asio::error::host_not_found;
    co_return std::move(job->endpoints);
  }

  static Endpoints system_look_up(const Address& address, error_code& error) {
    asio::io_context io;
    tcp::resolver resolver(io);
    Endpoints endpoints;
    for (const auto& entry : resolver.resolve(address.host, std::to_string(address.port), error))
      endpoints.push_back(entry.endpoint());
    return endpoints;
  }

  /// Ends the look-up that is under way.
  void cancel() { done_.notify(); }

  ~Resolver() { forget(); }
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

 private:
  struct Job {
    std::mutex mutex;
    Resolver* resolver = nullptr;  // null when nobody waits any more
    bool is_done = false;
    Endpoints endpoints;
    error_code error;
  };

  void forget() {
    if (!job_) return;
    const std::lock_guard lock(job_->mutex);
    job_->resolver = nullptr;
  }

  asio::io_context& io_;
  Event done_;
  LookUp look_up_;
  std::shared_ptr<Job> job_;
};

}  // namespace troop::net::detail
