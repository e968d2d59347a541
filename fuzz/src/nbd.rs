//! What NBD clients and NVMe hosts can send. The properties are in `floe_server::fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// Names a folder to put the first inputs into.
const SEEDS: &str = "FLOE_FUZZ_SEEDS";

fuzz_target!(
    init: {
        if let Some(folder) = std::env::var_os(SEEDS) {
            for (number, seed) in floe_server::fuzz::seeds().into_iter().enumerate() {
                let path = std::path::Path::new(&folder).join(format!("seed-{number:03}"));
                std::fs::write(path, seed).expect("the folder for seeds can be written to");
            }
        }
    },
    |input: &[u8]| floe_server::fuzz::run(input)
);
