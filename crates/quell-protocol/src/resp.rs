//! RESP2 and RESP3 as a server speaks them: frames, commands and replies.

mod args;
mod command;
mod decoder;
mod encode;
mod error;
mod frame;
mod hold_commands;
mod info;
mod inline;
mod memo;
mod number;
mod override_commands;
mod question;
mod queue;
mod reader;
mod session;
mod table;
mod table_request;
mod throttle;
mod verdict;

pub use args::Args;
pub use command::Command;
pub use decoder::{Decoded, Decoder};
pub use encode::{Encoder, Protocol};
pub use error::CommandError;
pub use frame::{FrameError, FrameLimits};
pub use hold_commands::{EndCommand, Reserve};
pub use info::{ConnectionFacts, ServerFacts};
pub use memo::CallMemo;
pub use override_commands::{OverriddenKey, OverrideCommand, OverrideVerb};
pub use queue::{MAX_QUEUED, MAX_QUEUED_BYTES, Queue, QueueFull};
pub use reader::{Read, Reader, Request};
pub use session::{
    Client, Credentials, HELLO_NOAUTH, Hello, LibraryField, NO_PASSWORD_SET, NOAUTH, Ready,
    WRONG_PASSWORD,
};
pub use table_request::TableRequest;
pub use throttle::{Throttle, ThrottleError, ThrottleLimit};
