//! libFuzzer on `envoy_files`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quell_fuzz::envoy_files::fuzz(input));
