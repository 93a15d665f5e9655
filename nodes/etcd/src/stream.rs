//! The stream of bytes to a server.

use tokio::io::{AsyncRead, AsyncWrite};

/// A stream of bytes to a server and back.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Bytes for S {}
