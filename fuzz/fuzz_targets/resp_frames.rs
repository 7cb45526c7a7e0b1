//! libFuzzer on `resp_frames`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quell_fuzz::resp_frames::fuzz(input));
