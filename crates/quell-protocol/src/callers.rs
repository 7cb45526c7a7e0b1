//! Callers: what strangers may take of a listener, in places and in frames.
//!
//! Nothing here opens a socket. A listener asks for a [`Place`] for each connection that it accepts, and
//! shows a [`FrameMeter`] the bytes of those that may speak HTTP/2.

mod frames;
mod network;
mod places;

pub use frames::FrameMeter;
pub use network::Network;
pub use places::{NoPlace, Place, Places};
