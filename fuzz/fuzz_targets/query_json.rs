//! libFuzzer on `query_json`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quell_fuzz::query_json::fuzz(input));
