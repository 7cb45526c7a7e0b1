//! The floor of the server and the coordinator of Quell: listeners, TLS, credentials, web plumbing, and the
//! frame of the console. Nothing here decides.
//!
//! Read first: [`listen`] (how connections come in), [`access`] (who may do what), [`caller`] (who sends a
//! request) and [`console::shell`] (the frame of every page).
//!
//! It is for the programs of Quell, and may change in any version.

pub mod access;
pub mod address;
pub mod body;
pub mod budget;
pub mod caller;
pub mod candidate;
pub mod candidate_routes;
pub mod config;
pub mod console;
pub mod detach;
pub mod etcd_url;
pub mod file_watch;
pub mod fleet_member;
pub mod hang_up;
pub mod head;
pub mod health;
pub mod history;
pub mod http_connection;
pub mod lazy_overrides;
pub mod listen;
pub mod login;
pub mod metrics_text;
mod newest_rules;
pub mod numbers;
pub mod override_sweep;
mod proposal;
pub mod pulled_rules;
pub mod refused_key;
pub mod reply;
pub mod requests;
pub mod rule_push;
pub mod rule_source;
pub mod rule_tests;
pub mod rule_versions;
pub mod rules_host;
pub mod secret_source;
pub mod shell_word;
pub mod stored_rules;
pub mod tally;
pub mod task;
pub mod tls;
pub mod user_header;
pub mod wait;
