//! libFuzzer on `http2_frames`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quell_fuzz::http2_frames::fuzz(input));
