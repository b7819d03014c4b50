//! A proxy before a server whose connections break.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A proxy that cuts its first connection after this number of bytes, in one direction, and lets others pass. Returns
/// its port, and whether it has cut.
pub(crate) fn cutting(to: u16, after: usize, is_answer: bool) -> (u16, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let has_cut = Arc::new(AtomicBool::new(false));
    let cuts = has_cut.clone();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().take(2).enumerate() {
            let (client, server) = (client.unwrap(), TcpStream::connect(("127.0.0.1", to)).unwrap());
            for way in [false, true] {
                let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                if way {
                    std::mem::swap(&mut from, &mut into);
                }
                let most = if number == 0 && way == is_answer { after } else { usize::MAX };
                let cuts = cuts.clone();
                std::thread::spawn(move || {
                    let (mut buffer, mut left) = ([0; 4096], most);
                    while let Ok(amount @ 1..) = from.read(&mut buffer) {
                        let part = amount.min(left);
                        left -= part;
                        cuts.fetch_or(left == 0, Ordering::SeqCst);
                        if into.write_all(&buffer[..part]).is_err() || left == 0 {
                            break;
                        }
                    }
                    let _ = (from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both));
                });
            }
        }
    });
    (port, has_cut)
}
