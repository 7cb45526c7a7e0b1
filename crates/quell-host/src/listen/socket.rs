//! Socket: a port or a Unix socket on which a listener accepts.
//!
//! The system completes handshakes by itself, and closing a port resets those that nobody accepted.
//! There is always one more between the last accept and the close. So a server that stops first has the
//! system drop new attempts, then accepts what was begun before, and only then closes. A client whose
//! attempt was dropped repeats it after a second, and is refused or reaches the next server.
//!
//! A Unix socket has no handshake: a client that finds the file is connected. So a server that stops
//! removes the file first. The next server may make its own from then on.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use socket2::{Domain, SockAddr, SockRef, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use super::Stream;
use crate::address::Address;

/// Connections that the system keeps until they are accepted. A client that comes when there are more
/// gets no answer, and tries again after a second. Linux keeps at most `net.core.somaxconn`, by default
/// the same number.
pub(super) const BACKLOG: u32 = 4_096;

/// Source of connections.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Until it closes.
        file: Option<SocketFile>,
        path: Arc<Path>,
    },
}

impl Socket {
    /// Listens on `address`. Who may connect to a Unix socket is what the permissions `mode` of its file
    /// say. Needs a runtime.
    pub(super) fn bind(address: &Address, mode: u32) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => listen_tcp(*address).map(Self::Tcp),
            Address::Unix(path) => {
                let (listener, file) = listen_unix(path, mode)?;
                Ok(Self::Unix {
                    listener,
                    file: Some(file),
                    path: Arc::clone(path),
                })
            }
        }
    }

    /// Its address; never port 0.
    pub(super) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix { path, .. } => Ok(Address::Unix(Arc::clone(path))),
        }
    }

    /// The next connection, and where it comes from. Who connects to a Unix socket has no address, and
    /// gets that of the listener.
    pub(super) async fn accept(&self) -> io::Result<(Stream, Address)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                Ok((Stream::Tcp(stream), Address::Tcp(remote)))
            }
            Self::Unix { listener, path, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), Address::Unix(Arc::clone(path))))
            }
        }
    }

    /// A connection that the system has completed, if there is any. This asks the system, since the
    /// runtime may not have noticed it yet.
    pub(super) fn accept_now(&self) -> Option<(Stream, Address)> {
        let accept = |socket: SockRef<'_>| {
            let (stream, remote) = socket.accept().ok()?;
            stream.set_nonblocking(true).ok()?;
            Some((stream, remote))
        };
        match self {
            Self::Tcp(listener) => {
                let (stream, remote) = accept(SockRef::from(listener))?;
                let stream = TcpStream::from_std(stream.into()).ok()?;
                Some((Stream::Tcp(stream), Address::Tcp(remote.as_socket()?)))
            }
            Self::Unix { listener, path, .. } => {
                let (stream, _) = accept(SockRef::from(listener))?;
                let stream = UnixStream::from_std(stream.into()).ok()?;
                Some((Stream::Unix(stream), Address::Unix(Arc::clone(path))))
            }
        }
    }

    /// Keeps out those who have not connected yet. Those who have can still be accepted.
    pub(super) fn shut_out(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => drop_attempts(listener),
            Self::Unix { file, .. } => {
                *file = None;
                Ok(())
            }
        }
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // As a server that starts again needs it: connections of the one before may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Nobody can connect between `bind`, which makes the file, and `listen`. So nobody gets in before the
/// permissions are right.
fn listen_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    remove_stale(path)?;
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::new(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG.try_into().unwrap_or(i32::MAX))?;
    socket.set_nonblocking(true)?;
    Ok((UnixListener::from_std(socket.into())?, file))
}

/// Removes the file that a server left which did not end cleanly.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            let reason = "there is a file that is no socket: move it away";
            return Err(io::Error::new(ErrorKind::AlreadyExists, reason));
        }
        Ok(_) => {}
    }
    let probe = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Connecting would wait for a server that is slow to accept.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        Ok(()) | Err(_) => {
            let reason = "another server listens there";
            Err(io::Error::new(ErrorKind::AddrInUse, reason))
        }
    }
}

/// The file of a Unix socket, removed on drop.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: Box<Path>,
    /// Its device and its inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.into(),
            identity: identity(path)?,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have put another in its place.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Has the system drop attempts to connect, and go on with handshakes that have begun. A classic BPF
/// program reads the TCP header of each segment that comes to the listener.
#[cfg(target_os = "linux")]
fn drop_attempts(socket: &TcpListener) -> io::Result<()> {
    use socket2::SockFilter;
    // As <linux/bpf_common.h> has them.
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // As RFC 9293, 3.1 has them.
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    SockRef::from(socket).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        // Bytes of the segment that are kept.
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}

/// Other systems have nothing of the kind: a connection that comes while a listener closes is reset.
#[cfg(not(target_os = "linux"))]
fn drop_attempts(_: &TcpListener) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdListener;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    fn listen(address: &str) -> Socket {
        Socket::bind(&address.parse().unwrap(), 0o600).unwrap()
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_listener_that_closes_loses_no_connection() {
        let mut socket = listen("127.0.0.1:0");
        let address = socket.address().unwrap().tcp().unwrap();
        let before = TcpStream::connect(address).await.unwrap();
        socket.shut_out().unwrap();
        let after = TcpStream::connect(address);
        let after = tokio::time::timeout(Duration::from_millis(200), after).await;
        assert!(after.is_err(), "it is neither accepted nor refused");
        let (_, remote) = socket.accept_now().unwrap();
        assert_eq!(remote, Address::Tcp(before.local_addr().unwrap()));
        assert!(socket.accept_now().is_none());
    }

    #[tokio::test]
    async fn a_unix_socket_that_closes_loses_no_connection() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("a.sock");
        let mut socket = listen(&format!("unix:{}", path.display()));
        let _before = [(); 2].map(|()| std::os::unix::net::UnixStream::connect(&path).unwrap());
        socket.shut_out().unwrap();
        let after = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(after.kind(), ErrorKind::NotFound);
        // The next server need not wait until this one has closed.
        let _next = listen(&format!("unix:{}", path.display()));
        assert!(socket.accept_now().is_some() && socket.accept_now().is_some());
        assert!(socket.accept_now().is_none());
        drop(socket);
        UnixStream::connect(&path)
            .await
            .expect("the next one's file stays");
    }

    /// Without this a crowd of clients that connects at once waits for seconds.
    #[tokio::test]
    async fn many_connect_before_any_is_accepted() {
        let socket = listen("127.0.0.1:0");
        let address = socket.address().unwrap().tcp().unwrap();
        let connects = (0..1_000).map(|_| TcpStream::connect(address));
        let connected = futures_util::future::join_all(connects);
        // One that the system does not take tries again for minutes, since nobody accepts.
        let connected = tokio::time::timeout(Duration::from_secs(60), connected).await;
        let connected = connected.expect("the system took all of them");
        assert!(connected.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn only_the_file_of_a_dead_server_is_replaced() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("a.sock");
        let bind = || Socket::bind(&Address::Unix(Arc::from(&*path)), 0o640);
        // It closes and leaves its file.
        drop(StdListener::bind(&path).unwrap());
        let socket = bind().unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let error = bind().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        let error = bind().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    /// Such a server is slow, not dead.
    #[tokio::test]
    async fn a_server_whose_queue_is_full_keeps_its_file() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("a.sock");
        let full = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        let address = SockAddr::unix(&path).unwrap();
        full.bind(&address).unwrap();
        full.listen(0).unwrap();
        let mut waiting = Vec::new();
        loop {
            let client = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            if client.connect(&address).is_err() {
                break;
            }
            waiting.push(client);
        }
        let error = remove_stale(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    }
}
