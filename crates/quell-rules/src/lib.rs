//! The rules file of Quell: parsing with exact positions, explanations, edits, and tests for rules.
//!
//! [`load`] reads files and directories, [`parse_str`] a text. The rules go to the limiter of the crate
//! `quell`, which stands beside this one under `[dependencies]`:
//!
//! ```
//! use quell_rules::{Query, explain, parse_str};
//!
//! let text = "
//! domain: shop
//! rules:
//!   - name: login-per-ip
//!     match: { path: /login }
//!     per: [remote_address]
//!     limit: 5/min
//!     algorithm: sliding_log
//! ";
//! let loaded = parse_str("shop.yaml", text).map_err(|problems| problems[0].to_string())?;
//! // limiter.set_rules(loaded.domains)?;
//!
//! let login = Query::new("shop").entry("path", "/login").entry("remote_address", "10.0.0.1");
//! let explained = explain(&loaded.domains, &login).to_string();
//! assert!(explained.contains("+ login-per-ip: sliding_log 5/min"), "{explained}");
//!
//! // Every mistake says where it is and what to write instead.
//! let problems = parse_str("shop.yaml", &text.replace("5/min", "5/mn")).unwrap_err();
//! let problem = problems[0].to_string();
//! assert!(problem.starts_with("shop.yaml:7:12: rules[0].limit: "), "{problem}");
//! # Ok::<(), String>(())
//! ```
//!
//! All fields of a file are in `docs/fields.md`, which is [`FIELD_TABLES`].
//!
//! To read the code, begin with `fields` (all fields), `raw` (a file as written), `resolve` (its meaning)
//! and [`scenario`] (tests for rules).

mod anchor;
mod change;
mod cursor;
mod decimal;
mod describe;
mod document;
mod duration;
mod edit;
mod explain;
mod fields;
mod hint;
mod instant;
mod kind;
mod load;
mod path;
mod period;
mod problem;
mod raw;
mod resolve;
pub mod scenario;
mod source;
mod walk;
mod yaml;

pub use change::{ChangeKind, RuleChange, RuleChanges};
pub use describe::{
    AdaptiveNumbers, BanNumbers, LimitDescription, LimitNumbers, RateNumbers, RefillNumbers,
    ReserveDescription,
};
pub use document::{DocumentNode, DocumentValue, read_documents};
pub use duration::{Exact as ExactDuration, parse as parse_duration};
pub use edit::{Assignment, EditError, EditedRules, set_fields};
pub use explain::{DescriptorExplanation, Explanation, RuleExplanation, explain, max_hold_ms};
pub use fields::{FIELD_TABLES, number_fields};
pub use hint::{meant, one_of};
pub use instant::is_no_year_of_instants;
pub use load::{LoadedRules, force_shadow, load, load_from, parse_bytes, parse_str};
pub use problem::{MAX_PROBLEMS, Problem};
// What these functions take and return; the crate `quell` shows the same types.
pub use quell_core::descriptor::Query;
pub use quell_core::limit::Limit;
pub use quell_core::rule::{DomainRules, Rule};
pub use quell_core::verdict::Verdict;
pub use raw::{meant_entry, wrong_address};
pub use resolve::stored::StoredFields;
pub use source::{Source, TextFile, Texts, join_texts, read_texts};
pub use walk::{MAX_FILES, find_files};
pub use yaml::MAX_FILE_BYTES;

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
