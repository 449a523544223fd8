package org.apache.bookkeeper.proto;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.util.ReferenceCounted;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.client.DistributionSchedule;
import org.apache.bookkeeper.client.RoundRobinDistributionSchedule;
import org.apache.bookkeeper.proto.LedgerMetadataFormat.DigestType;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;
import org.apache.bookkeeper.util.ByteBufList;

/**
 * Prints frames and digests made by Apache BookKeeper's own classes as JSON: {"name": "hex", ...}.
 *
 * <p>With Apache's jars in lib/: {@code javac -cp 'lib/*' -d out BookkeeperFrames.java}, then
 * {@code java -cp 'out:lib/*' org.apache.bookkeeper.proto.BookkeeperFrames > bookkeeper-frames.json}. It lives in
 * Apache's package because the factories of the v2 requests are visible only there.
 */
public class BookkeeperFrames {
    private static final ByteBufAllocator ALLOCATOR = UnpooledByteBufAllocator.DEFAULT;
    private static final byte V2 = BookieProtocol.CURRENT_PROTOCOL_VERSION;
    private static final long LEDGER = 0x0102030405060708L;
    private static final long ENTRY = 77;
    private static final long LAC = 75;
    private static final long LENGTH = 123456;
    private static final byte[] PASSWORD = "secret".getBytes(StandardCharsets.UTF_8);
    private static final byte[] SMALL = "payload".getBytes(StandardCharsets.UTF_8);
    private static final List<String> LINES = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        digests();
        v2();
        v3Requests();
        v3Again();
        v3Responses();
        availability();
        codes();
        writeSets();
        System.out.println("{\n" + String.join(",\n", LINES) + "\n}");
    }

    private static void digests() throws Exception {
        put("key/empty", DigestManager.generateMasterKey(new byte[0]));
        put("key/secret", DigestManager.generateMasterKey(PASSWORD));
        byte[] large = new byte[2000];
        for (int i = 0; i < large.length; i++) {
            large[i] = (byte) (i * 7);
        }
        for (DigestType type : DigestType.values()) {
            for (byte[] password : new byte[][] {new byte[0], PASSWORD}) {
                String suffix = type.name() + (password.length == 0 ? "/empty" : "/secret");
                byte[] key = DigestManager.generateMasterKey(password);
                DigestManager v3 = DigestManager.instantiate(LEDGER, password, type, ALLOCATOR, false);
                DigestManager v2 = DigestManager.instantiate(LEDGER, password, type, ALLOCATOR, true);
                put("entry/" + suffix, packaged(v3, SMALL, key, 0));
                put("entry-of-nothing/" + suffix, packaged(v3, new byte[0], key, 0));
                put("entry-large/" + suffix, packaged(v3, large, key, 0));
                put("lac/" + suffix, ByteBufList.coalesce(v3.computeDigestAndPackageForSendingLac(LAC)));
                put("v2-add/" + suffix, packaged(v2, SMALL, key, 0));
                put("v2-add-recovery/" + suffix, packaged(v2, SMALL, key,
                        BookieProtocol.FLAG_RECOVERY_ADD | BookieProtocol.FLAG_HIGH_PRIORITY));
            }
        }
    }

    private static ByteBuf packaged(DigestManager manager, byte[] payload, byte[] key, int flags) {
        ReferenceCounted made = manager.computeDigestAndPackageForSending(ENTRY, LAC, LENGTH,
                Unpooled.wrappedBuffer(payload), key, flags);
        return made instanceof ByteBufList ? ByteBufList.coalesce((ByteBufList) made) : (ByteBuf) made;
    }

    private static void v2() throws Exception {
        byte[] key = DigestManager.generateMasterKey(PASSWORD);
        BookieProtoEncoding.EnDecoder requests = new BookieProtoEncoding.RequestEnDeCoderPreV3();
        put("v2-read", requests.encode(BookieProtocol.ReadRequest.create(V2, LEDGER, ENTRY, (short) 0, null),
                ALLOCATOR));
        put("v2-read-high-priority", requests.encode(BookieProtocol.ReadRequest.create(V2, LEDGER, ENTRY,
                BookieProtocol.FLAG_HIGH_PRIORITY, null), ALLOCATOR));
        put("v2-fence", requests.encode(BookieProtocol.ReadRequest.create(V2, LEDGER, -1,
                BookieProtocol.FLAG_DO_FENCING, key), ALLOCATOR));
        put("v2-batch-read", requests.encode(BookieProtocol.BatchedReadRequest.create(V2, LEDGER, ENTRY, (short) 0,
                null, 42, 10, 100_000), ALLOCATOR));
        put("v2-batch-read-fence", requests.encode(BookieProtocol.BatchedReadRequest.create(V2, LEDGER, ENTRY,
                BookieProtocol.FLAG_DO_FENCING, key, 42, 10, 100_000), ALLOCATOR));
        put("v2-auth", requests.encode(new BookieProtocol.AuthRequest(V2, auth()), ALLOCATOR));

        BookieProtoEncoding.EnDecoder responses = new BookieProtoEncoding.ResponseEnDeCoderPreV3();
        put("v2-add-response", responses.encode(BookieProtocol.AddResponse.create(V2, BookieProtocol.EOK, LEDGER,
                ENTRY), ALLOCATOR));
        put("v2-add-response-fenced", responses.encode(BookieProtocol.AddResponse.create(V2, BookieProtocol.EFENCED,
                LEDGER, ENTRY), ALLOCATOR));
        put("v2-add-response-version-5", responses.encode(BookieProtocol.AddResponse.create((byte) 5,
                BookieProtocol.EBADVERSION, LEDGER, ENTRY), ALLOCATOR));
        put("v2-add-response-version-0", responses.encode(BookieProtocol.AddResponse.create((byte) 0,
                BookieProtocol.EOK, LEDGER, ENTRY), ALLOCATOR));
        put("v2-read-response", responses.encode(new BookieProtocol.ReadResponse(V2, BookieProtocol.EOK, LEDGER,
                ENTRY, Unpooled.wrappedBuffer(SMALL)), ALLOCATOR));
        put("v2-read-response-no-entry", responses.encode(new BookieProtocol.ReadResponse(V2,
                BookieProtocol.ENOENTRY, LEDGER, ENTRY), ALLOCATOR));
        ByteBufList entries = ByteBufList.get(Unpooled.wrappedBuffer(SMALL));
        entries.add(Unpooled.wrappedBuffer("another".getBytes()));
        put("v2-batch-read-response", responses.encode(new BookieProtocol.BatchedReadResponse(V2,
                BookieProtocol.EOK, LEDGER, ENTRY, 42, entries), ALLOCATOR));
        put("v2-batch-read-response-no-ledger", responses.encode(new BookieProtocol.BatchedReadResponse(V2,
                BookieProtocol.ENOLEDGER, LEDGER, ENTRY, 42), ALLOCATOR));
        put("v2-auth-response", responses.encode(new BookieProtocol.AuthResponse(V2, auth()), ALLOCATOR));
    }

    private static AuthMessage auth() { // Anew for each frame: writing one uses its payload up.
        return new AuthMessage().setAuthPluginName("AuthDisabledPlugin").setPayload("hi".getBytes());
    }

    private static Request request(OperationType operation) {
        Request request = new Request();
        request.setHeader().setVersion(ProtocolVersion.VERSION_THREE).setOperation(operation).setTxnId(99);
        return request;
    }

    private static void v3Requests() throws Exception {
        byte[] key = DigestManager.generateMasterKey(PASSWORD);
        DigestManager manager = DigestManager.instantiate(LEDGER, PASSWORD, DigestType.CRC32C, ALLOCATOR, false);
        ByteBuf body = packaged(manager, SMALL, key, 0);
        BookieProtoEncoding.EnDecoder codec = new BookieProtoEncoding.RequestEnDecoderV3();

        Request add = request(OperationType.ADD_ENTRY);
        add.setAddRequest().setLedgerId(LEDGER).setEntryId(ENTRY).setMasterKey(key).setBody(body.duplicate());
        put("v3-add", codec.encode(add, ALLOCATOR));
        Request recovery = request(OperationType.ADD_ENTRY);
        recovery.getHeader().setPriority(100);
        recovery.setAddRequest().setLedgerId(LEDGER).setEntryId(ENTRY).setMasterKey(key).setBody(body.duplicate())
                .setFlag(AddRequest.Flag.RECOVERY_ADD).setWriteFlags(1);
        put("v3-add-recovery-deferred", codec.encode(recovery, ALLOCATOR));
        Request read = request(OperationType.READ_ENTRY);
        read.setReadRequest().setLedgerId(LEDGER).setEntryId(ENTRY);
        put("v3-read", codec.encode(read, ALLOCATOR));
        Request fence = request(OperationType.READ_ENTRY);
        fence.setReadRequest().setLedgerId(LEDGER).setEntryId(-1).setFlag(ReadRequest.Flag.FENCE_LEDGER)
                .setMasterKey(key);
        put("v3-fence", codec.encode(fence, ALLOCATOR));
        Request poll = request(OperationType.READ_ENTRY);
        poll.setReadRequest().setLedgerId(LEDGER).setEntryId(-1).setFlag(ReadRequest.Flag.ENTRY_PIGGYBACK)
                .setPreviousLAC(LAC).setTimeOut(1000);
        put("v3-long-poll", codec.encode(poll, ALLOCATOR));
        Request writeLac = request(OperationType.WRITE_LAC);
        writeLac.setWriteLacRequest().setLedgerId(LEDGER).setLac(LAC).setMasterKey(key)
                .setBody(ByteBufList.coalesce(manager.computeDigestAndPackageForSendingLac(LAC)));
        put("v3-write-lac", codec.encode(writeLac, ALLOCATOR));
        Request readLac = request(OperationType.READ_LAC);
        readLac.setReadLacRequest().setLedgerId(LEDGER);
        put("v3-read-lac", codec.encode(readLac, ALLOCATOR));
        Request force = request(OperationType.FORCE_LEDGER);
        force.setForceLedgerRequest().setLedgerId(LEDGER);
        put("v3-force", codec.encode(force, ALLOCATOR));
        Request info = request(OperationType.GET_BOOKIE_INFO);
        info.setGetBookieInfoRequest().setRequested(3);
        put("v3-bookie-info", codec.encode(info, ALLOCATOR));
        Request list = request(OperationType.GET_LIST_OF_ENTRIES_OF_LEDGER);
        list.setGetListOfEntriesOfLedgerRequest().setLedgerId(LEDGER);
        put("v3-list-entries", codec.encode(list, ALLOCATOR));
        Request tls = request(OperationType.START_TLS);
        tls.setStartTLSRequest();
        put("v3-start-tls", codec.encode(tls, ALLOCATOR));
        Request auth = request(OperationType.AUTH);
        auth.setAuthRequest().setAuthPluginName("AuthDisabledPlugin").setPayload("hi".getBytes());
        put("v3-auth", codec.encode(auth, ALLOCATOR));
        put("v3-batch-read", codec.encode(request(OperationType.BATCH_READ_ENTRY), ALLOCATOR));
        put("v3-range-read", codec.encode(request(OperationType.RANGE_READ_ENTRY), ALLOCATOR));
    }

    /** Requests of magnetar whose fields have another order, read by Apache's classes and written again. */
    private static void v3Again() throws Exception {
        BookieProtoEncoding.EnDecoder codec = new BookieProtoEncoding.RequestEnDecoderV3();
        for (String ours : new String[] {
            "000000610a080803100218632064aa065408888e98a8c0e0808101104d1a14e793cbc379107648537183605cd361d3bb789a39222b"
                    + "0102030405060708000000000000004d000000000000004b000000000001e240086cc36b7061796c6f61642801a00601",
            "000000390a06080310011863a2062e08888e98a8c0e080810110ffffffffffffffffff011a14e793cbc379107648537183605cd361d3"
                    + "bb789a39a00601",
            "000000280a06080310011863a2061d08888e98a8c0e080810110ffffffffffffffffff01204b28e807a00602"}) {
            ByteBuf frame = Unpooled.wrappedBuffer(ByteBufUtil.decodeHexDump(ours));
            frame.skipBytes(4); // The size, which Netty's decoder takes off.
            put("again/" + ours, codec.encode(codec.decode(frame), ALLOCATOR));
        }
    }

    private static Response response(OperationType operation, StatusCode status) {
        Response response = new Response();
        response.setHeader().setVersion(ProtocolVersion.VERSION_THREE).setOperation(operation).setTxnId(99);
        response.setStatus(status);
        return response;
    }

    private static void v3Responses() throws Exception {
        BookieProtoEncoding.EnDecoder codec = new BookieProtoEncoding.ResponseEnDecoderV3();
        Response add = response(OperationType.ADD_ENTRY, StatusCode.EFENCED);
        add.setAddResponse().setLedgerId(LEDGER).setEntryId(ENTRY).setStatus(StatusCode.EFENCED);
        put("v3-add-response-fenced", codec.encode(add, ALLOCATOR));
        Response read = response(OperationType.READ_ENTRY, StatusCode.EOK);
        read.setReadResponse().setLedgerId(LEDGER).setEntryId(ENTRY).setStatus(StatusCode.EOK).setBody(SMALL)
                .setMaxLAC(LAC).setLacUpdateTimestamp(1_700_000_000_000L);
        put("v3-read-response", codec.encode(read, ALLOCATOR));
        Response limbo = response(OperationType.READ_ENTRY, StatusCode.EUNKNOWNLEDGERSTATE);
        limbo.setReadResponse().setLedgerId(LEDGER).setEntryId(ENTRY).setStatus(StatusCode.EUNKNOWNLEDGERSTATE);
        put("v3-read-response-limbo", codec.encode(limbo, ALLOCATOR));
        Response readLac = response(OperationType.READ_LAC, StatusCode.EOK);
        readLac.setReadLacResponse().setLedgerId(LEDGER).setStatus(StatusCode.EOK).setLacBody(SMALL)
                .setLastEntryBody("last".getBytes());
        put("v3-read-lac-response", codec.encode(readLac, ALLOCATOR));
        Response writeLac = response(OperationType.WRITE_LAC, StatusCode.EOK);
        writeLac.setWriteLacResponse().setLedgerId(LEDGER).setStatus(StatusCode.EOK);
        put("v3-write-lac-response", codec.encode(writeLac, ALLOCATOR));
        Response force = response(OperationType.FORCE_LEDGER, StatusCode.EOK);
        force.setForceLedgerResponse().setLedgerId(LEDGER).setStatus(StatusCode.EOK);
        put("v3-force-response", codec.encode(force, ALLOCATOR));
        Response info = response(OperationType.GET_BOOKIE_INFO, StatusCode.EOK);
        info.setGetBookieInfoResponse().setStatus(StatusCode.EOK).setTotalDiskCapacity(1L << 40).setFreeDiskSpace(5);
        put("v3-bookie-info-response", codec.encode(info, ALLOCATOR));
        Response list = response(OperationType.GET_LIST_OF_ENTRIES_OF_LEDGER, StatusCode.EOK);
        list.setGetListOfEntriesOfLedgerResponse().setLedgerId(LEDGER).setStatus(StatusCode.EOK)
                .setAvailabilityOfEntriesOfLedger(SMALL);
        put("v3-list-entries-response", codec.encode(list, ALLOCATOR));
        Response tls = response(OperationType.START_TLS, StatusCode.EOK);
        tls.setStartTLSResponse();
        put("v3-start-tls-response", codec.encode(tls, ALLOCATOR));
        Response auth = response(OperationType.AUTH, StatusCode.EOK);
        auth.setAuthResponse().setAuthPluginName("AuthDisabledPlugin").setPayload(new byte[0]);
        put("v3-auth-response", codec.encode(auth, ALLOCATOR));
        put("v3-bad-request-response",
                codec.encode(response(OperationType.RANGE_READ_ENTRY, StatusCode.EBADREQ), ALLOCATOR));
    }

    private static void availability() {
        put("entries/none", new AvailabilityOfEntriesOfLedger(new long[0]).serializeStateOfEntriesOfLedger());
        put("entries/one-run", new AvailabilityOfEntriesOfLedger(
                new long[] {0, 1, 2, 3}).serializeStateOfEntriesOfLedger());
        put("entries/striped", new AvailabilityOfEntriesOfLedger(
                new long[] {0, 2, 3, 5, 6, 8, 9, 20}).serializeStateOfEntriesOfLedger());
    }

    /** The codes of answers: of v2 by the names of constants, of v3 by those of an enumeration. */
    private static void codes() throws Exception {
        for (Field field : BookieProtocol.class.getFields()) {
            if (field.getType() == int.class && field.getName().startsWith("E")) {
                put("code/" + field.getName(), Unpooled.copyInt(field.getInt(null)));
            }
        }
        for (StatusCode status : StatusCode.values()) {
            put("status/" + status.name(), Unpooled.copyInt(status.getValue()));
        }
    }

    /** The positions of entries that are far apart, a byte each. */
    private static void writeSets() {
        for (int[] sizes : new int[][] {{1, 1}, {3, 2}, {3, 3}, {5, 3}, {7, 2}}) {
            RoundRobinDistributionSchedule schedule = new RoundRobinDistributionSchedule(sizes[1], 1, sizes[0]);
            for (long entry : new long[] {0, 1, 4, 1_000_003, 1L << 62}) {
                DistributionSchedule.WriteSet set = schedule.getWriteSet(entry);
                byte[] positions = new byte[set.size()];
                for (int i = 0; i < positions.length; i++) {
                    positions[i] = (byte) set.get(i);
                }
                put("write-set/" + sizes[0] + "/" + sizes[1] + "/" + entry, positions);
            }
        }
    }

    private static void put(String name, Object bytes) {
        String hex = bytes instanceof byte[] ? ByteBufUtil.hexDump((byte[]) bytes)
                : bytes instanceof ByteBufList ? ByteBufUtil.hexDump(ByteBufList.coalesce((ByteBufList) bytes))
                : ByteBufUtil.hexDump((ByteBuf) bytes);
        LINES.add("  \"" + name + "\": \"" + hex + "\"");
    }
}
