//! The committed header is what the source says.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config =
        cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a configuration");
    // Its modules are found from there.
    let bindings = cbindgen::Builder::new()
        .with_src(folder.join("src/lib.rs"))
        .with_config(config)
        .generate()
        .expect("a header");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).expect("a header is text");
    let header = folder.join("include/floe.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&header, &made).expect("the header is written");
    }
    let committed = std::fs::read_to_string(&header).unwrap_or_default();
    assert!(
        committed == made,
        "include/floe.h is out of date: UPDATE_HEADER=1 cargo test -p floe-c --test it header"
    );
}
