//! libFuzzer on `http_question`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quell_fuzz::http_question::fuzz(input));
