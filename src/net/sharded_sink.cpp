#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <troop/net/sharded_sink.hpp>

namespace troop::net {

ShardedSink::ShardedSink(const std::vector<std::string>& servers, ClientOptions options,
                         const RecordLayout& layout) {
  require(!servers.empty(), "number of servers", 0, "a positive integer");
  for (const std::string& server : servers) {
    options.connect = server;
    clients_.push_back(std::make_unique<Client>(options, layout));
  }
}

Outcome ShardedSink::insert(const BatchView& records, std::span<const float> priorities, Deadline deadline,
                            const std::stop_token& stop) {
  for (;;) {
    const Outcome outcome = offer(records, priorities);
    if (outcome != Outcome::timeout) return outcome;
    if (stop.stop_requested()) return Outcome::cancelled;
    if (deadline.has_passed()) return Outcome::timeout;
    // Any of the clients may have room next; looking again costs less than being told by each.
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any never;
    never.wait_until(lock, stop, std::min(deadline.time(), Clock::now() + kPeriod), [] { return false; });
  }
}

Outcome ShardedSink::flush(Deadline deadline, const std::stop_token& stop) {
  Outcome outcome = Outcome::ok;
  for (const auto& client : clients_) {
    const Outcome one = client->flush(deadline, stop);
    if (outcome == Outcome::ok) outcome = one;
  }
  return outcome;
}

Outcome ShardedSink::stop(Deadline deadline) {
  std::vector<Outcome> outcomes(clients_.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < clients_.size(); ++i)
    threads.emplace_back([&, i] { outcomes[i] = clients_[i]->stop(deadline); });
  threads.clear();
  for (const Outcome outcome : outcomes) {
    if (outcome != Outcome::ok) return outcome;
  }
  return Outcome::ok;
}

Outcome ShardedSink::offer(const BatchView& records, std::span<const float> priorities) {
  const std::size_t start = turn_.fetch_add(1, std::memory_order_relaxed);
  bool is_any_connected = false;
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    Client& client = *clients_[(start + i) % clients_.size()];
    if (!client.statistics().is_connected) continue;
    is_any_connected = true;
    const Outcome outcome = client.insert(records, priorities, Deadline::now());
    if (outcome != Outcome::timeout) return outcome;
  }
  for (std::size_t i = 0; i < clients_.size() && !is_any_connected; ++i) {
    Client& client = *clients_[(start + i) % clients_.size()];
    const Outcome outcome = client.insert(records, priorities, Deadline::now());
    if (outcome != Outcome::timeout) return outcome;
  }
  return Outcome::timeout;
}

}  // namespace troop::net
