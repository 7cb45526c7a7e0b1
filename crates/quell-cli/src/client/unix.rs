//! Unix: how the client reaches a server at a Unix socket.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Connects to a path, whatever the URL of a request says.
#[derive(Debug)]
pub(super) struct UnixConnector(pub(super) PathBuf);

impl Connector for UnixConnector {
    type Out = UnixTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<UnixTransport>, Error> {
        let config = details.config;
        Ok(Some(UnixTransport {
            stream: UnixStream::connect(&self.0)?,
            buffers: LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size()),
        }))
    }
}

/// A connection for one request.
#[derive(Debug)]
pub(super) struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let most = timeout.not_zero().map(|most| *most);
        self.stream.set_write_timeout(most)?;
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        match self.stream.write_all(output) {
            // A server may refuse a request before it has read all of it. Its answer can still be read.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(in_time(error, timeout)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let most = timeout.not_zero().map(|most| *most);
        self.stream.set_read_timeout(most)?;
        let read = self.stream.read(self.buffers.input_append_buf());
        let count = read.map_err(|error| in_time(error, timeout))?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        false
    }
}

fn in_time(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}
