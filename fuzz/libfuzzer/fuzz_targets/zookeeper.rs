#![no_main]

use std::sync::Once;

static HOOK: Once = Once::new();

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // The hook of libFuzzer ends the process at each panic, even if the library catches it.
    HOOK.call_once(|| {
        let aborts = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !quorate_fuzz::is_expected(panic) {
                aborts(panic);
            }
        }));
    });
    let caught = std::panic::catch_unwind(|| quorate_fuzz::zookeeper::run(input));
    if caught.is_err() {
        std::process::abort();
    }
});
