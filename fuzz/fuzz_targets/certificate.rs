//! libFuzzer on `certificate`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quell_fuzz::certificate::fuzz(input));
