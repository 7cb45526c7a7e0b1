//! libFuzzer on `scenario_file`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quell_fuzz::scenario_file::fuzz(input));
