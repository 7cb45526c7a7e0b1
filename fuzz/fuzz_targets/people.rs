//! libFuzzer on `people`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quell_fuzz::people::fuzz(input));
