#![doc = include_str!("../README.md")]

pub mod config;
pub mod json;
pub mod proto;
mod reflection;
mod request;
mod reservation;
mod response;

pub use reflection::file_descriptors;
pub use request::{OwnLimit, Part, Request, RequestError, SettledDescriptor};
pub use reservation::{REFUSED, Reservation, ReservationKeys, Settles, UNRESERVED, difference};
pub use response::{Answer, Fields};
