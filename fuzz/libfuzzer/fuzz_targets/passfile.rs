#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    quorate_fuzz::passfile::run(input);
});
