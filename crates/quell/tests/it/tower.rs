//! Layers: in front of axum, tonic and services of any kind.

mod addresses;
mod bills;
mod calls;
mod entries;
mod failures;
mod grpc;
mod http;
mod pages;
mod permits;
mod shaping;
pub(crate) mod support;
mod twins;
