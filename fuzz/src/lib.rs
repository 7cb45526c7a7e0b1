//! What the fuzz targets do with one input: whatever the bytes, no panic, no contradiction, no unbounded
//! memory. libFuzzer searches for inputs; the tests here try a fixed number of seeded inputs.

pub mod certificate;
pub mod credentials;
pub mod decide;
pub mod envoy_files;
pub mod envoy_request;
pub mod http2_frames;
pub mod http_question;
pub mod path;
pub mod people;
pub mod query_json;
pub mod resp_frames;
pub mod rules_file;
pub mod scenario_file;

#[cfg(test)]
mod tests;
