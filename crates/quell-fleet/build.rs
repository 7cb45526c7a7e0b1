//! Compiles the messages in Rust: no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "proto/quell/fleet/v1/fleet.proto";
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    tonic_prost_build::configure()
        .codec_path("crate::wire::CheckedCodec")
        .compile_fds(descriptors)?;
    Ok(())
}
