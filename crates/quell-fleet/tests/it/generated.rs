//! `src/proto.rs` is what tonic generates from `fleet.proto`; kept, so that only this test needs `protoc`.
//!
//! `QUELL_UPDATE_DOCS=1 cargo test -p quell-fleet generated` writes it anew.

use std::fs;
use std::path::Path;

#[test]
fn the_messages_are_those_of_the_proto() {
    let folder = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .codec_path("crate::wire::CheckedCodec")
        .out_dir(folder.path())
        .compile_protos(&["proto/quell/fleet/v1/fleet.proto"], &["proto"])
        .unwrap();
    let generated = fs::read_to_string(folder.path().join("quell.fleet.v1.rs")).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/proto.rs");
    if std::env::var_os("QUELL_UPDATE_DOCS").is_some() {
        fs::write(&file, &generated).unwrap();
    }
    assert!(
        fs::read_to_string(&file).unwrap() == generated,
        "src/proto.rs is out of date: run `QUELL_UPDATE_DOCS=1 cargo test -p quell-fleet generated`"
    );
}
