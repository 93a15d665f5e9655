import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Apache Curator's InterProcessMutex, measured as benches/versus.rs asks. */
public class Curator {
    static CuratorFramework client(String host) {
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(host, 10_000, 5_000, new ExponentialBackoffRetry(100, 3));
        client.start();
        return client;
    }

    static long micros() {
        return System.nanoTime() / 1000;
    }

    static void cycle(String host, int count) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client(host), "/curator/cycle");
        List<Long> all = new ArrayList<>();
        // Twice as many warm-up cycles as other peers have, because the JVM compiles the code meanwhile.
        for (int i = 0; i < 3 * count; i++) {
            long began = micros();
            mutex.acquire();
            mutex.release();
            if (i >= 2 * count) all.add(micros() - began);
        }
        all.forEach(System.out::println);
    }

    static void hand(String host, int turns) throws Exception {
        AtomicLong given = new AtomicLong();
        List<Long> all = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        int clients = 10;
        for (int i = 0; i < clients; i++) {
            Thread thread = new Thread(() -> {
                try {
                    InterProcessMutex mutex = new InterProcessMutex(client(host), "/curator/hand");
                    for (int turn = 0; turn < 2 * turns; turn++) {
                        mutex.acquire();
                        long before = given.get();
                        if (before > 0) all.add(micros() - before);
                        given.set(micros());
                        mutex.release();
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) thread.join();
        all.stream().skip(all.size() / 2).forEach(System.out::println);
    }

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[2]);
        if (args[1].equals("cycle")) cycle(args[0], count);
        else hand(args[0], count);
        System.exit(0);
    }
}
