//! A server that speaks only the login of MariaDB: it demands an authentication plugin, and refuses every client.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_le_bytes();
    [&length[..3], &[sequence], payload].concat()
}

fn receive_packet(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload)?;
    Ok(payload)
}

/// The first packet of a MariaDB server.
fn greeting() -> Vec<u8> {
    // CLIENT_PROTOCOL_41, CLIENT_SECURE_CONNECTION, CLIENT_PLUGIN_AUTH, CLIENT_CONNECT_WITH_DB,
    // CLIENT_MULTI_STATEMENTS.
    let capabilities: u32 = 1 << 9 | 1 << 15 | 1 << 19 | 1 << 3 | 1 << 16 | 1 << 17;
    let [a, b, c, d] = capabilities.to_le_bytes();
    [
        b"\x0a11.4.2-MariaDB\0".as_slice(),
        &7_u32.to_le_bytes(),
        b"12345678\0",
        &[a, b, 45, 2, 0, c, d, 21],
        &[0; 10],
        b"123456789012\0mysql_native_password\0",
    ]
    .concat()
}

/// Serves one login: demands `plugin`, refuses the client, and returns its answer to the plugin.
fn serve_login(stream: &mut TcpStream, plugin: &str, nonce: &[u8; 32]) -> io::Result<Vec<u8>> {
    stream.write_all(&packet(0, &greeting()))?;
    receive_packet(stream)?;
    let switch_request = [b"\xfe", plugin.as_bytes(), b"\0", nonce].concat();
    stream.write_all(&packet(2, &switch_request))?;
    let mut answer = receive_packet(stream)?;
    let mut sequence = 4;
    if plugin == "parsec" {
        // Of parsec, the first answer is empty. The server then sends the algorithm, the number of rounds and a salt.
        let salt = [b"P\0".as_slice(), &[9; 18]].concat();
        stream.write_all(&packet(sequence, &salt))?;
        answer = receive_packet(stream)?;
        sequence += 2;
    }
    let denied_packet = b"\xff\x15\x04#28000Access denied".as_slice();
    stream.write_all(&packet(sequence, denied_packet))?;
    Ok(answer)
}

/// Starts a server on a free port of 127.0.0.1 that demands `plugin` with this `nonce` at each login, and then refuses
/// the login (error 1045). Returns its address, and the answers of clients to the plugin.
///
/// The server runs until the test program ends.
///
/// # Errors
///
/// If no port is available.
pub fn demand_plugin(
    plugin: &'static str,
    nonce: &'static [u8; 32],
) -> io::Result<(SocketAddr, Receiver<Vec<u8>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let (sender, answers) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if let Ok(answer) = serve_login(&mut stream, plugin, nonce) {
                // The test may not read the answers.
                let _ = sender.send(answer);
            }
        }
    });
    Ok((address, answers))
}
