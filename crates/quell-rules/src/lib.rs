//! The rules file of Quell: parsing with exact positions, explanations, edits, and tests for rules.
//!
//! Open first: `fields` (all fields), `raw` (a file as written), `resolve` (its meaning) and
//! [`scenario`] (tests for rules).

mod change;
mod cursor;
mod decimal;
mod describe;
mod duration;
mod edit;
mod explain;
mod fields;
mod hint;
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
};
pub use duration::{Exact as ExactDuration, parse as parse_duration};
pub use edit::{Assignment, EditError, EditedRules, set_fields};
pub use explain::{DescriptorExplanation, Explanation, RuleExplanation, explain};
pub use fields::FIELD_TABLES;
pub use hint::{meant, one_of};
pub use load::{LoadedRules, force_shadow, load, load_from, parse_bytes, parse_str};
pub use problem::{MAX_PROBLEMS, Problem};
pub use raw::wrong_address;
pub use source::{Source, TextFile, Texts, join_texts, read_texts};
pub use walk::MAX_FILES;
pub use yaml::MAX_FILE_BYTES;
