"""Lexicon: the words, names and facts that the generated text is made of."""

CAPITALS = dict(
    line.split(": ")
    for line in """\
Afghanistan: Kabul
Albania: Tirana
Algeria: Algiers
Andorra: Andorra la Vella
Angola: Luanda
Antigua and Barbuda: Saint John's
Argentina: Buenos Aires
Armenia: Yerevan
Australia: Canberra
Austria: Vienna
Azerbaijan: Baku
the Bahamas: Nassau
Bahrain: Manama
Bangladesh: Dhaka
Barbados: Bridgetown
Belarus: Minsk
Belgium: Brussels
Belize: Belmopan
Benin: Porto-Novo
Bhutan: Thimphu
Bolivia: Sucre
Bosnia and Herzegovina: Sarajevo
Botswana: Gaborone
Brazil: Brasilia
Brunei: Bandar Seri Begawan
Bulgaria: Sofia
Burkina Faso: Ouagadougou
Burundi: Gitega
Cambodia: Phnom Penh
Cameroon: Yaounde
Canada: Ottawa
Cape Verde: Praia
the Central African Republic: Bangui
Chad: N'Djamena
Chile: Santiago
China: Beijing
Colombia: Bogota
the Comoros: Moroni
the Republic of the Congo: Brazzaville
the Democratic Republic of the Congo: Kinshasa
Costa Rica: San Jose
Croatia: Zagreb
Cuba: Havana
Cyprus: Nicosia
the Czech Republic: Prague
Denmark: Copenhagen
Djibouti: Djibouti City
Dominica: Roseau
the Dominican Republic: Santo Domingo
East Timor: Dili
Ecuador: Quito
Egypt: Cairo
El Salvador: San Salvador
Equatorial Guinea: Malabo
Eritrea: Asmara
Estonia: Tallinn
Eswatini: Mbabane
Ethiopia: Addis Ababa
Fiji: Suva
Finland: Helsinki
France: Paris
Gabon: Libreville
the Gambia: Banjul
Georgia: Tbilisi
Germany: Berlin
Ghana: Accra
Greece: Athens
Grenada: Saint George's
Guatemala: Guatemala City
Guinea: Conakry
Guinea-Bissau: Bissau
Guyana: Georgetown
Haiti: Port-au-Prince
Honduras: Tegucigalpa
Hungary: Budapest
Iceland: Reykjavik
India: New Delhi
Indonesia: Jakarta
Iran: Tehran
Iraq: Baghdad
Ireland: Dublin
Israel: Jerusalem
Italy: Rome
Ivory Coast: Yamoussoukro
Jamaica: Kingston
Japan: Tokyo
Jordan: Amman
Kazakhstan: Astana
Kenya: Nairobi
Kiribati: Tarawa
Kosovo: Pristina
Kuwait: Kuwait City
Kyrgyzstan: Bishkek
Laos: Vientiane
Latvia: Riga
Lebanon: Beirut
Lesotho: Maseru
Liberia: Monrovia
Libya: Tripoli
Liechtenstein: Vaduz
Lithuania: Vilnius
Luxembourg: Luxembourg City
Madagascar: Antananarivo
Malawi: Lilongwe
Malaysia: Kuala Lumpur
the Maldives: Male
Mali: Bamako
Malta: Valletta
the Marshall Islands: Majuro
Mauritania: Nouakchott
Mauritius: Port Louis
Mexico: Mexico City
Micronesia: Palikir
Moldova: Chisinau
Monaco: Monaco City
Mongolia: Ulaanbaatar
Montenegro: Podgorica
Morocco: Rabat
Mozambique: Maputo
Myanmar: Naypyidaw
Namibia: Windhoek
Nauru: Yaren
Nepal: Kathmandu
the Netherlands: Amsterdam
New Zealand: Wellington
Nicaragua: Managua
Niger: Niamey
Nigeria: Abuja
North Korea: Pyongyang
North Macedonia: Skopje
Norway: Oslo
Oman: Muscat
Pakistan: Islamabad
Palau: Ngerulmud
Panama: Panama City
Papua New Guinea: Port Moresby
Paraguay: Asuncion
Peru: Lima
the Philippines: Manila
Poland: Warsaw
Portugal: Lisbon
Qatar: Doha
Romania: Bucharest
Russia: Moscow
Rwanda: Kigali
Saint Kitts and Nevis: Basseterre
Saint Lucia: Castries
Saint Vincent and the Grenadines: Kingstown
Samoa: Apia
San Marino: San Marino City
Sao Tome and Principe: Sao Tome City
Saudi Arabia: Riyadh
Senegal: Dakar
Serbia: Belgrade
the Seychelles: Victoria
Sierra Leone: Freetown
Singapore: Singapore City
Slovakia: Bratislava
Slovenia: Ljubljana
the Solomon Islands: Honiara
Somalia: Mogadishu
South Africa: Pretoria
South Korea: Seoul
South Sudan: Juba
Spain: Madrid
Sri Lanka: Sri Jayawardenepura Kotte
Sudan: Khartoum
Suriname: Paramaribo
Sweden: Stockholm
Switzerland: Bern
Syria: Damascus
Taiwan: Taipei
Tajikistan: Dushanbe
Tanzania: Dodoma
Thailand: Bangkok
Togo: Lome
Tonga: Nuku'alofa
Trinidad and Tobago: Port of Spain
Tunisia: Tunis
Turkey: Ankara
Turkmenistan: Ashgabat
Tuvalu: Funafuti
Uganda: Kampala
Ukraine: Kyiv
the United Arab Emirates: Abu Dhabi
the United Kingdom: London
the United States: Washington, D.C.
Uruguay: Montevideo
Uzbekistan: Tashkent
Vanuatu: Port Vila
Vatican City: Vatican City
Venezuela: Caracas
Vietnam: Hanoi
Yemen: Sanaa
Zambia: Lusaka
Zimbabwe: Harare""".splitlines()
)

# Other names of countries, understood but not used in replies.
ALIASES = {
    "the United States": "the USA|the US|America|the United States of America",
    "the United Kingdom": "the UK|Great Britain|Britain|England",
    "the Netherlands": "Holland",
    "the United Arab Emirates": "the UAE|the Emirates",
    "the Czech Republic": "Czechia",
    "the Democratic Republic of the Congo": "DR Congo|Congo-Kinshasa",
    "the Republic of the Congo": "Congo-Brazzaville",
    "Ivory Coast": "Cote d'Ivoire",
    "Myanmar": "Burma",
    "East Timor": "Timor-Leste",
    "Cape Verde": "Cabo Verde",
    "Eswatini": "Swaziland",
    "Bosnia and Herzegovina": "Bosnia",
    "North Macedonia": "Macedonia",
    "Turkey": "Turkiye",
    "Vatican City": "the Vatican",
}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

MONTH_LENGTHS = {
    "January": 31,
    "February": 28,
    "March": 31,
    "April": 30,
    "May": 31,
    "June": 30,
    "July": 31,
    "August": 31,
    "September": 30,
    "October": 31,
    "November": 30,
    "December": 31,
}

MONTHS = list(MONTH_LENGTHS)

NAMES = """Anna Ben Clara David Emma Felix Grace Hugo Ida Jonas Kate Leo Mia Noah Olga Paul Rosa Sam
Tina Umar Vera Will Xenia Yusuf Zoe Amir Bella Carl Dina Erik Fatima George Hana Ivan Julia Karim
Lena Marco Nina Oscar Petra Quinn Ravi Sara Tom Ursula Victor Wanda Yara Zack Alice Bob Chen Diego
Elena Finn Greta Henry Irene Jack""".split()

CITIES = """Paris London Berlin Rome Madrid Vienna Prague Oslo Tokyo Cairo Lima Delhi Boston Chicago
Sydney Toronto Dublin Athens Warsaw Lisbon Kyiv Seoul Hamburg Munich Milan Naples Lyon Geneva Basel
Porto Seville Denver Dallas Austin Miami Seattle Osaka Kyoto Mumbai Nairobi Accra Lagos Quito Bogota
Havana Montreal Perth Glasgow Leeds Ghent""".split()

WORDS = """apple banana cherry date elder fig grape honey iris jam kiwi lemon mango nut olive peach
quince rice salt tomato ant bear cat dog eagle fox goat horse ibex jay koala lion mouse newt owl
pig quail rabbit snake tiger unicorn viper wolf yak zebra book chair door engine flag glass hammer
ink jar key lamp map needle oven pen quilt rope spoon table umbrella vase window yarn zipper air
bridge cloud desert earth field garden hill island jungle kettle lake moon night ocean park queen
river sun tree valley water year zoo blue cold dark early fast green happy idle joyful kind large
new old quick red small tall warm young brave bread candle dream egg fire gold heart ice journey
king leaf mirror nest orange piano question rain stone train uncle violin wind bell circle drum
feather guitar hat jacket kite ladder magnet nail onion pencil ribbon silver thread urn velvet
wagon""".split()

THINGS = "apples books coins pens eggs stones cards balls cups stamps keys shells".split()
