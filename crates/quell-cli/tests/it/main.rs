//! The built `quell` command: every subcommand, exit code and error text, and a server that is
//! asked by real clients.
//!
//! A missing client is a failure, which says how to install it. The modules are compiled under
//! `cfg(test)` so that their helpers may unwrap.

#[cfg(test)]
mod ab;
#[cfg(test)]
mod admin_log;
#[cfg(test)]
mod ask;
#[cfg(test)]
mod client_tls;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod coming_from;
#[cfg(test)]
mod console;
#[cfg(test)]
mod credentials;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod curl;
#[cfg(test)]
mod deb;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod files;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod gateways;
#[cfg(test)]
mod lease_audit;
#[cfg(test)]
mod listener_tls;
#[cfg(test)]
mod man;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod overrides;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod pipelines;
#[cfg(test)]
mod pipes;
#[cfg(test)]
mod process;
#[cfg(test)]
mod production;
#[cfg(test)]
mod ratelimit;
#[cfg(test)]
mod recipes;
#[cfg(test)]
mod redis_tools;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod restart;
#[cfg(test)]
mod rolling;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod rules_store;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod server;
#[cfg(test)]
mod shared_holds;
#[cfg(test)]
mod shared_store;
#[cfg(test)]
mod survival;
#[cfg(test)]
mod terminal;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod unix;
#[cfg(test)]
mod usage;
