//! Asks pkg-config where the library is.

use std::process::Command;

fn main() {
    let found = Command::new("pkg-config")
        .args(["--libs-only-L", "dovetail"])
        .output()
        .expect("pkg-config cannot be started");
    assert!(
        found.status.success(),
        "pkg-config does not know dovetail: set PKG_CONFIG_PATH\n{}",
        String::from_utf8_lossy(&found.stderr)
    );
    for word in String::from_utf8_lossy(&found.stdout).split_whitespace() {
        let folder = word.trim_start_matches("-L");
        println!("cargo:rustc-link-search=native={folder}");
    }
    println!("cargo:rustc-link-lib=dylib=dovetail");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
}
